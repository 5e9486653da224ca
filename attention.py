"""Attention in five lines of torch, taken apart: a lesson to read, run and change.

usage: python attention.py [--exercise N | --self-check N]   (N = 1, 2, 3)"""

import ctypes
import difflib
import math
import os
import signal
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # no traceback at Ctrl-C, nor where the reader leaves, as `head` does
    stopped = b"attention.py: interrupted\n"
    signal.signal(signal.SIGINT, lambda *_: os.write(2, stopped) and os._exit(130))
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)

import torch
from torch import Tensor
from torch.nn import functional as F

FIVE_LINES = """注意力只有五行。先一行一行拆开看，最后合起来：
  第 1 行  q, k, v = x @ W_q, x @ W_k, x @ W_v             # x：每个字一个向量；q、k、v：查询、键、值
  第 2 行  scores = q @ k.T / math.sqrt(d_head)            # d_head：q、k、v 各有几个数
  第 3 行  scores = scores.masked_fill(future, -math.inf)  # future：后面的字
  第 4 行  weights = scores.softmax(-1)                    # 每个字看各个字的权重
  第 5 行  out = weights @ v"""
LEADS_ON = """先自己想，再运行。练习：python attention.py --exercise 1（2、3）；自测：--self-check 1（2、3）。
接下来：python train.py 训练一个小模型。每个头还是这五行，W_q、W_k、W_v 由它自己学会；第 2 行只多加一项，
也是学来的：这个头偏爱相隔几个字的地方（光凭 q、k 分不出远近）。
然后用 python view.py --open 看学到的 weights：一首诗里，每个字在看哪些字。"""


def show(matrix: Tensor, number: str = "{:.2f}") -> None:
    print(*("  " + " ".join(map(number.format, row)) for row in matrix.tolist()), sep="\n")


def by_character(characters: str, values: Tensor) -> str:
    pairs = zip(characters, values.tolist(), strict=True)
    return "{" + ", ".join(f"{character} {round(value, 2)}" for character, value in pairs) + "}"


def section_1() -> None:
    print("\n== 1. 一次矩阵乘法求平均（第 5 行）")
    torch.manual_seed(0)
    x = torch.randn(5, 4)  # T = 5 positions, each a vector of 4 numbers
    weights = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    out = weights @ x  # line 5, with x for v
    print("weights：下三角的 1，每行除以 1 的个数。out = weights @ x，第 i 行是前 i 个的平均：")
    show(weights)
    print(f"第三个位置等于前三个向量的平均：{torch.allclose(out[2], x[:3].mean(0))}")
    print("这里人人平分。注意力只多一步：谁占多少，由向量彼此打分来定。")


def section_2() -> None:
    print("\n== 2. 点积打分（第 2、4 行）")
    characters = "床前明月光"
    # Two numbers a key: how much it has to do with light, and how much with position.
    k = torch.tensor([[0.1, 0.9], [0.0, 1.0], [0.9, 0.1], [1.0, 0.0], [0.8, 0.2]])
    q = torch.tensor([1.0, 0.0])  # 光 asks for light
    scores = q @ k.T  # line 2, not scaled yet
    weights = scores.softmax(-1)  # line 4
    print("每个字的 k 有两个数：与光亮有多大关系，与方位有多大关系。光的 q = [1, 0]：只问光亮。")
    print(f"scores = q @ k.T    {by_character(characters, scores)}")
    print(f"scores.softmax(-1)  {by_character(characters, weights)}")
    print(f"scores 先乘以 5     {by_character(characters, (5 * scores).softmax(-1))}")
    print("softmax 把分数变成正数，合计 1。分数整体放大，权重就更集中：第 4 节要用到。")


def section_3() -> None:
    print("\n== 3. 因果掩码（第 2 到 5 行）")
    torch.manual_seed(0)
    x = torch.randn(5, 4)  # the x of section 1
    q, k = torch.randn(5, 8), torch.randn(5, 8)
    scores = q @ k.T / math.sqrt(8)  # line 2; section 4 shows why √8
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)  # True right of the diagonal
    scores = scores.masked_fill(future, -math.inf)  # line 3
    weights = scores.softmax(-1)  # line 4
    out = weights @ x  # line 5, with x for v
    print("写到第 i 个字，后面的字还不存在。把它们的分数填成 -inf，softmax 之后正好是 0：")
    show(weights)
    print("和第 1 节一样的三角形，每行仍合计 1，只是不再平分。")
    print(f"第一个位置只看得见自己，输出就是自己：{torch.equal(out[0], x[0])}")


def section_4() -> None:
    print("\n== 4. 缩放：为什么除以 √d（第 2、4 行）")
    torch.manual_seed(0)
    print("q、k 的数各自独立、均值 0、方差 1，d 个乘积之和的标准差就是 √d：d 越大，分数散得越开。")
    print("    d  标准差   √d | 不除：最大权重 softmax 梯度 | 除以 √d：最大权重 softmax 梯度")
    for d in (16, 64, 256, 1024):
        q, k = torch.randn(1000, 1, d), torch.randn(1000, 5, d)  # each query has its own 5 keys
        scores = (q @ k.mT).squeeze(1)  # (1000, 5): line 2, not scaled yet
        row = [d, scores.std(), math.sqrt(d)]
        for s in (scores, scores / math.sqrt(d)):
            weights = s.softmax(-1)  # line 4
            # d weights_i / d scores_j = weights_i * (1[i = j] - weights_j): (5, 5) for each query
            jacobian = weights.diag_embed() - weights[:, :, None] * weights[:, None, :]
            row += [weights.amax(-1).mean(), jacobian.norm(dim=(1, 2)).mean()]
        print("{:5}{:8.2f}{:5.0f} |{:13.2f}{:13.3f}   |{:16.2f}{:13.3f}".format(*row))
    print("不除：最大的几乎独占（趋近 1），softmax 饱和，梯度越来越小。除以 √d：两样几乎不变。")


def section_5() -> None:
    print("\n== 5. 一个完整的头（五行都用上）")
    torch.manual_seed(0)
    T, d_model, d_head = 5, 16, 8
    x = torch.randn(T, d_model)
    W_q, W_k, W_v = (torch.randn(d_model, d_head) / math.sqrt(d_model) for _ in range(3))
    future = torch.ones(T, T, dtype=torch.bool).triu(1)

    q, k, v = x @ W_q, x @ W_k, x @ W_v
    scores = q @ k.T / math.sqrt(d_head)
    scores = scores.masked_fill(future, -math.inf)
    weights = scores.softmax(-1)
    out = weights @ v

    fused = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    print(f"形状 {tuple(x.shape)} -> q, k, v {tuple(q.shape)} -> {tuple(out.shape)}")
    print(f"与 scaled_dot_product_attention(is_causal=True) 相差 {(out - fused).abs().max():.1e}")
    print("q 查询：我要找什么。k 键：我是什么。v 值：我给什么。第 2 节是手写的，这里由 x 算出。")


def head(q: Tensor, k: Tensor, v: Tensor, masked: bool = True) -> tuple[Tensor, Tensor]:
    """Lines 2 to 5: q, k, v (..., T, d_head) to weights (..., T, T) and out (..., T, d_head)."""
    T, d_head = q.shape[-2:]
    scores = q @ k.mT / math.sqrt(d_head)
    if masked:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    weights = scores.softmax(-1)
    return weights, weights @ v


def exercise_1() -> None:
    print("== 练习 1. 光改问方位：q 从 [1, 0] 换成 [0, 1]")
    k = torch.tensor([[0.1, 0.9], [0.0, 1.0], [0.9, 0.1], [1.0, 0.0], [0.8, 0.2]])
    old, new = (torch.tensor([[1.0, 0.0], [0.0, 1.0]]) @ k.T).softmax(-1)  # lines 2 and 4
    for name, values in (("[1, 0]", old), ("[0, 1]", new), ("变化  ", new - old)):
        print(f"{name}  {by_character('床前明月光', values)}")
    print("k 一个没动，只换了 q：床、前升，明、月、光降。看谁，由问的和被问的一起定。")


def exercise_2() -> None:
    print("== 练习 2. 第 5 节的头，去掉掩码")
    torch.manual_seed(0)
    x = torch.randn(5, 16)
    q, k, v = (x @ (torch.randn(16, 8) / math.sqrt(16)) for _ in range(3))
    (_, out), (_, masked) = head(q, k, v, masked=False), head(q, k, v)
    fused = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=False)[0]
    print(f"与 scaled_dot_product_attention(is_causal=False) 相差 {(out - fused).abs().max():.1e}")
    print("位置 1 到 5 的输出各变了多少（第一行：变化的长度；第二行：原来的长度）：")
    show(torch.stack([(out - masked).norm(dim=-1), masked.norm(dim=-1)]))
    print("最后一个位置不变：它本来就看得见全部。其余的位置都掺进了后面的字。")


def free_bytes() -> int:
    if sys.platform == "win32":
        status = (ctypes.c_ulonglong * 8)(64)  # MEMORYSTATUSEX: begins with its size
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return status[2]  # ullAvailPhys
    if sys.platform == "linux":  # the line MemAvailable
        return 1024 * int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[7])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # half of what is built in


def measure(run: Callable[..., object], *inputs: Tensor) -> tuple[float, float]:
    """run(*inputs): milliseconds (median of five) and megabytes (inputs and all that it takes)."""
    n = (8000 // len(inputs[0])) ** 2  # runs a sample: as much work for a small T as for a large
    seconds = timeit.repeat(lambda: run(*inputs), timer=time.process_time, number=n, repeat=5)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler announces itself on stderr
    with torch.autograd.profiler.profile(use_kineto=False, profile_memory=True) as record:
        run(*inputs)
    taken = sum(max(0, event.self_cpu_memory_usage) for event in record.function_events)
    return 1000 * sorted(seconds)[2] / n, (taken + sum(x.nbytes for x in inputs)) / 1e6


def exercise_3() -> None:
    print("== 练习 3. 时间和内存随 T 怎样增长")
    torch.set_num_threads(1)  # the time is then the work

    def explicit(q, k, v, future, scores, weights):
        # Into tables that exist already: on some systems getting them takes longer than this.
        torch.mm(q, k.T, out=scores).div_(math.sqrt(q.shape[-1]))
        scores.masked_fill_(future, -math.inf)
        return torch.softmax(scores, -1, out=weights) @ v

    def fused(*qkv):  # wants a batch and heads: one of each
        return F.scaled_dot_product_attention(*(x[None, None] for x in qkv), is_causal=True)

    # The tables take 9 bytes for each query and key: ask for twice that.
    lengths = [T for T in (1000, 2000, 4000, 8000) if free_bytes() > 2 * 9 * T**2]
    print(f"空闲内存 {free_bytes() / 1e9:.1f} GB，测到 T = {lengths[-1]}。处理器时间，取中位数。")
    print("内存：q、k、v、事先备好的表，加上算时申请的全部（profiler 所记）。倍数：与上一行相比。")
    for name, run in (("五行", explicit), ("融合（scaled_dot_product_attention）", fused)):
        print(f"{name}\n      T       毫秒    倍数         MB    倍数")
        rows = []
        for T in lengths:
            inputs = [*torch.randn(3, T, 64)]
            if run is explicit:
                inputs += [torch.ones(T, T, dtype=torch.bool).triu(1), *torch.empty(2, T, T)]
            rows.append((T, *measure(run, *inputs)))
            (_, ms, mb), (_, old_ms, old_mb) = rows[-1], rows[-2:][0]
            print(f"  {T:5} {ms:10.1f} {ms / old_ms:7.1f} {mb:10.1f} {mb / old_mb:7.1f}")
        p = torch.tensor(rows).log().T.cov()[0]  # covariances of log T with itself, log ms, log MB
        print(f"  拟合成 T 的 p 次方：时间 p = {p[1] / p[0]:.2f}，内存 p = {p[2] / p[0]:.2f}")
    print("五行要存下 T × T 的整张表：T 翻倍，时间和内存都约四倍。融合的算法一小块一小块地算，")
    print("用完就丢，右上方的块跳过不算，所以快；T 翻倍，时间仍要三四倍，内存只和 T 成正比。")


def self_check_1() -> None:
    print("== 自测 1. q、k、v 各管什么？")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 5, 8)
    weights, out = head(q, k, v)
    new_weights, new_out = head(q, k, torch.randn(5, 8))
    print(f"只换 v，weights 没变：{torch.equal(new_weights, weights)}，它只由 q、k 算出；", end="")
    print(f"out 变了，最多 {(new_out - out).abs().max():.2f}：v 是看到的内容。")
    k[2] = torch.randn(8)
    print("只换位置 3 的 k，weights 的变化（新的减旧的）：")
    show(head(q, k, v)[0] - weights, "{:+.2f}")
    print("前两行看不见位置 3，不动。后三行：第 3 列变了，同行别的权重让出或补上，合计仍是 1。")


def self_check_2() -> None:
    print("== 自测 2. 训练时没有掩码会怎样？")
    line = "白日依山尽黄河入海流欲穷千里目更上一层楼"  # no character twice: ids 0, 1, 2, …
    T, C = len(line), 64
    idx = torch.stack([torch.arange(T).roll(-i) for i in range(T)])  # (T, T): the line as a ring
    print(f"一个头学背「{line}」：首尾相接，从每个字起各读一遍，猜下一个字。")
    for masked in (True, False):
        torch.manual_seed(0)
        # W_v starts as the identity: a character seen is, at first, the character guessed.
        start = *torch.randn(2, T, C), *torch.randn(2, C, C) / math.sqrt(C), torch.eye(C)
        tokens, positions, W_q, W_k, W_v = (tensor.requires_grad_() for tensor in start)
        optimizer = torch.optim.Adam(start, lr=3e-3)
        for _ in range(1000):
            x = tokens[idx] + positions
            weights, out = head(x @ W_q, x @ W_k, x @ W_v, masked)
            logits = out @ tokens.T / math.sqrt(C)  # which character out resembles
            loss = F.cross_entropy(logits.mT, idx.roll(-1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        written = idx[0, :1]
        while len(written) < T:
            x = tokens[written] + positions[: len(written)]
            _, out = head(x @ W_q, x @ W_k, x @ W_v, masked)
            written = torch.cat([written, (out[-1:] @ tokens.T).argmax(-1)])
        answer = weights.diagonal(1, -2, -1).mean()  # the weight on the character to the right
        print(f"{'有' if masked else '没有'}掩码：损失 {loss:.3f}，给右边那个字的权重 {answer:.2f}")
        print(f"  从「{line[0]}」写起：{''.join(line[i] for i in written)}")
    print("乱猜的损失是 3.00，两次都降到几乎为 0。没有掩码，靠的是看右边一格，把答案抄过来；")
    print("轮到自己写，右边还没有字，抄无可抄。有掩码，抄不到，只好真的记住谁的后面是谁。")


def self_check_3() -> None:
    print("== 自测 3. 除以 √d，传回 q 的梯度有什么不同？")
    torch.manual_seed(0)
    print("1000 个 q，每个 5 个 k，weights 收到随机的梯度。传回每个 q 的梯度有多长：")
    print("    d | 不除：平均 中位数 最大 不到 0.01 | 除以 √d：平均 中位数 最大 不到 0.01")
    for d in (16, 64, 256, 1024):
        q, k = torch.randn(1000, 1, d, requires_grad=True), torch.randn(1000, 5, d)
        row = [d]
        for scale in (1, 1 / math.sqrt(d)):
            weights = (scale * q @ k.mT).softmax(-1)
            size = torch.autograd.grad(weights, q, torch.randn(1000, 1, 5))[0].norm(dim=-1)
            row += [size.mean(), size.median(), size.max(), (size < 0.01).float().mean()]
        print("{:5} |{:11.2f} {:.4f} {:4.1f} {:9.0%} |{:14.2f} {:.4f} {:4.1f} {:9.0%}".format(*row))
    print("不除，d 越大，收不到梯度的 q 越多，少数却大得出奇，平均看不出来。除以 √d，都差不多。")


def main(asked: str) -> None:
    steps = {
        "--exercise": (exercise_1, exercise_2, exercise_3),
        "--self-check": (self_check_1, self_check_2, self_check_3),
    }
    flag, _, number = asked.replace("=", " ").partition(" ")
    if not asked:
        print(FIVE_LINES)
        for section in (section_1, section_2, section_3, section_4, section_5):
            section()
        print(f"\n{LEADS_ON}")
    elif flag in ("-h", "--help"):
        print(__doc__)
    elif flag in steps and number in ("1", "2", "3"):
        steps[flag][int(number) - 1]()
    else:
        nearest = difflib.get_close_matches(flag, steps, n=1, cutoff=0)[0]
        sys.stderr.write(f"attention.py: error: no {asked!r}: did you mean {nearest} 1, 2 or 3?\n")
        sys.exit(2)


if __name__ == "__main__":
    if not sys.stdout.encoding.lower().startswith(("utf", "gb", "cp936")):  # cannot write Chinese
        sys.stdout.reconfigure(encoding="utf-8")
    main(" ".join(sys.argv[1:]))
