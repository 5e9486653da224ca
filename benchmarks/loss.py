"""Ways to the output layer's loss and its gradients: plain, torch's chunked, ours, and ours in the
two steps that training takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import ROOT, publish, table
from benchmarks.runs import Memory
from command_line import Parser, UsageError
from model.gpt import GPTConfig
from model.loss import linear_cross_entropy
from model.machine import set_up_memory

N, C, V = 2304, 128, 6244  # characters, channels, vocabulary of the default training
COMMON, RARE = GPTConfig.cutoff, 0.034  # common characters, share of the others in the poems


def plain(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """All logits at once, as most models do."""
    return F.cross_entropy(F.linear(x, weight).float(), targets)


def chunked(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """torch's own in chunks of 256 rows. It does not heed autocast, so it gets cast tensors."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=256)
    return F.linear_cross_entropy(x.to(dtype), weight.to(dtype), targets, options=options)


def ours(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean of our chunked one."""
    return linear_cross_entropy(x, weight, targets) / len(targets)


def two_steps(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The output layer's loss in two steps, as training takes it."""
    rare = targets >= COMMON
    first = linear_cross_entropy(x, weight[: COMMON + 1], targets.clamp(max=COMMON))
    second = linear_cross_entropy(x[rare], weight[COMMON:], targets[rare] - COMMON)
    return (first + second) / len(targets)


WAYS = {"plain": plain, "torch, chunked": chunked, "ours": ours, "ours, two steps": two_steps}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def once(way: Callable[..., Tensor], dtype: torch.dtype) -> Callable[[], None]:
    """A function that takes the loss of one batch and its gradients."""
    torch.manual_seed(0)
    x, weight = torch.randn(N, C, requires_grad=True), torch.randn(V, C, requires_grad=True)
    is_rare = torch.rand(N) < RARE
    targets = torch.where(is_rare, torch.randint(COMMON, V, (N,)), torch.randint(COMMON, (N,)))

    def forward_and_backward() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = way(x, weight, targets)
        loss.backward()
        x.grad = weight.grad = None

    return forward_and_backward


def times(dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Median seconds of each way, in turn round after round."""
    functions = {name: once(way, dtype) for name, way in WAYS.items()}
    seconds = {name: [] for name in WAYS}
    for i in range(2 + rounds):  # the first two also allocate
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if i >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in seconds.items()}


def peak_memory(name: str, dtype: str) -> float | None:
    """MB that a way adds to a fresh process, or None where the system doesn't say."""
    line = [sys.executable, "-m", "benchmarks", "loss", "--memory_of", name, "--dtype", dtype]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise UsageError(f"`{' '.join(line[1:])}` failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout) if done.stdout.strip() else None


def print_memory(name: str, dtype: str) -> None:
    """What `peak_memory` reads from its fresh process."""
    function, memory = once(WAYS[name], DTYPES[dtype]), Memory()
    memory.look("self")
    for _ in range(3):
        function()
    memory.look("self")
    if memory.samples:
        print((memory.peak - memory.samples[0]) / 1e6)


def main(argv: list[str]) -> None:
    """Print the table and keep it in RESULTS.md."""
    parser = Parser(prog="-m benchmarks loss", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; keep nothing")
    parser.add_argument("--dtype", choices=DTYPES, help="this number format alone")
    parser.add_argument("--memory_of", choices=WAYS, help="print what this way adds, in MB")
    args = parser.parse_args(argv)
    set_up_memory()
    if args.memory_of:
        return print_memory(args.memory_of, args.dtype or "float32")
    rows = []
    for dtype in [args.dtype] if args.dtype else DTYPES:
        seconds = times(DTYPES[dtype], rounds=5 if args.quick else 25)
        for name in WAYS:
            memory = peak_memory(name, dtype)
            rows.append(
                (
                    f"{name}, {dtype}",
                    f"{1e3 * seconds[name]:.1f}",
                    f"{seconds[name] / seconds['ours']:.2f}",
                    "not measured here" if memory is None else f"{memory:,.0f}",
                )
            )
    header = ("forward and backward", "ms", "time / ours", "memory added, MB")
    text = f"{N:,} characters, {C} channels, a vocabulary of {V:,}, {COMMON:,} of them common.\n\n"
    publish("loss", text + table(header, rows), keep=not args.quick)
    return None
