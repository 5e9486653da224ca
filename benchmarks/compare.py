"""Our training beside the reference recipe (reference.py): quality for time, speed, memory, start.

Trainings run in turn, each alone in a fresh process. Ours takes the output layer in two steps, the
reference whole: the ratio of speeds is of trainings, the share of the peak of the arithmetic done.
Their clock is that of their steps, making batches included; evaluations, maps, checkpoints and
starting are left out for both, and starting is measured by itself. Both are judged on every character
of the same held-out poems. Both are trained on the regular poems alone and on these with the extra ones:
the reference on both to the end, ours until its last epoch, as train.py does. The reference's time, the
loss to pass and the picture are those of the regular poems alone, with which it ends lower.
"""

from __future__ import annotations

from statistics import mean, median

import torch

from benchmarks.common import ROOT, SIZES, positive, publish, table
from benchmarks.flops import FORMULA, peak, training_flops
from benchmarks.memory import megabytes
from benchmarks.plot import plot
from benchmarks.runs import Log, Memory, reference, seconds_to_first_step, train
from command_line import Parser, say
from data.batches import IGNORE, Batches
from data.corpus import EXTRA_POEMS, POEMS, Corpus, read_documents
from model.gpt import GPTConfig
from model.machine import pick_dtype

OUT = ROOT / "out" / "benchmarks"
PICTURE = ROOT / "docs" / "loss.png"
Rows = list[tuple[str, str, str]]  # what, value, goal


def main(argv: list[str]) -> None:
    """Measure, print the table, keep it in RESULTS.md and the picture in docs/."""
    parser = Parser(prog="-m benchmarks training", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two minutes; keep nothing")
    parser.add_argument("--seeds", type=positive, default=3, help="trainings of each kind")
    args = parser.parse_args(argv)
    rows = start(1 if args.quick else 3)
    dtype = pick_dtype("auto", "cpu")
    if args.quick:
        rows += throughput([dtype], rounds=1, steps=20)
        rows += quality(seeds=1, reference_steps=40, default={"max_iters": 40})
    else:
        # The reference's format too: machines without bfloat16 units take it.
        rows += throughput(list(dict.fromkeys([dtype, torch.float32])), rounds=4, steps=40)
        rows += quality(args.seeds, reference_steps=2000, default={})
    text = (
        f"{' '.join(__doc__.split(chr(10), 2)[2].split())} Seeds: {1 if args.quick else args.seeds}."
        f"\n\n{table(('', 'measured', 'goal'), rows)}\n\nFLOPs a character: {FORMULA}."
    )
    publish("training", text, keep=not args.quick)


def start(runs: int) -> Rows:
    """Seconds from `python train.py` to its first step."""
    say("starting train.py ...")
    seconds = [seconds_to_first_step(OUT / "start") for _ in range(runs)]
    return [("`python train.py` to its first step", f"{median(seconds):.1f} s", "at most 3 s")]


def throughput(dtypes: list[torch.dtype], rounds: int, steps: int) -> Rows:
    """Characters/s at one shape, in turn, and our share of the machine's peak meanwhile: in each number
    format, the one that train.py takes here first."""
    names = {dtype: str(dtype).removeprefix("torch.") for dtype in dtypes}
    settings = {"eval_interval": steps, "log_interval": steps // 2, "max_iters": steps}
    peaks = {dtype: [] for dtype in dtypes}
    ours = {dtype: [] for dtype in dtypes}
    theirs = []
    for i in range(rounds):
        say(f"speed at {SIZES}: round {i + 1} of {rounds} ...")
        # Each log's second half: the first one also warms up.
        theirs.append(reference(OUT / "speed", **settings | {"eval_interval": 0})[0].speeds[1])
        for dtype, name in names.items():
            peaks[dtype].append(peak(dtype))
            more = SIZES | {"eval_batches": 1, "dtype": name}
            ours[dtype].append(train(OUT / "speed", **settings | more)[0].speeds[1])
    flops = training_flops(*shape())
    rows = [("reference, characters/s, in float32", f"{median(theirs):,.0f}", "")]
    for dtype, name in names.items():
        first = dtype == dtypes[0]
        speed, best = median(ours[dtype]), max(peaks[dtype])
        ratios = [a / b for a, b in zip(ours[dtype], theirs, strict=True)]
        rows += [
            (f"ours at the reference's shape in {name}, characters/s", f"{speed:,.0f}", ""),
            (
                "… / reference",
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                "at least 2.5" if first else "",
            ),
            (f"peak of matrix products in {name}", f"{best / 1e9:,.0f} GFLOP/s", ""),
            (
                f"our share of it, at {flops / 1e6:.2f} MFLOP a character",
                f"{speed * flops / best:.0%}",
                "at least 50%" if first else "",
            ),
        ]
    return rows


def shape() -> tuple[GPTConfig, float, float]:
    """The shape for peers, the mean length of the text that a training character stands in, and the
    share of training characters that are rare."""
    corpus = Corpus(read_documents(POEMS))
    config = GPTConfig(len(corpus.vocabulary), **SIZES)
    batches = Batches(corpus.train, corpus.vocabulary, config.block_size, 2304)
    counts = [
        (int((y != IGNORE).sum()), int((y >= config.cutoff).sum()), y.size(1))
        for _, y in map(batches.__getitem__, range(len(batches)))
    ]
    total = sum(n for n, _, _ in counts)
    length = sum(n * length for n, _, length in counts) / total
    return config, length, sum(rare for _, rare, _ in counts) / total


def quality(seeds: int, reference_steps: int, default: dict[str, int]) -> Rows:
    """Loss against time: the default training, its first fifth with more evaluations, then for each
    seed the reference with and without the extra poems, and ours in as much time and in a tenth."""
    say("the default training ...")
    whole, memory = train(OUT / "default", **default)
    beginning = whole
    if not default:
        say("its beginning once more, judged often ...")
        part = max(1, whole.steps // 80)
        settings = {"max_iters": 16 * part, "lr_decay_iters": whole.steps, "eval_interval": part}
        beginning = train(OUT / "beginning", **settings)[0]
    step_s = whole.total_s / whole.steps
    peers, peers_extra, equal, alone, tenth = [], [], [], [], []
    for seed in range(1, seeds + 1):
        say(f"seed {seed} of {seeds}: the reference ...")
        settings = {"max_iters": reference_steps, "seed": seed}
        # The first one's way is drawn.
        settings["eval_interval"] = reference_steps // (1 if default or seed > 1 else 5)
        peers.append(reference(OUT / f"reference_{seed}", **settings)[0])
        say(f"seed {seed} of {seeds}: the reference with the extra poems ...")
        settings |= {"eval_interval": reference_steps, "extra_data": EXTRA_POEMS}
        peers_extra.append(reference(OUT / f"reference_{seed}_extra", **settings)[0])
        seconds = mean(log.total_s for log in peers)
        regular = {"extra_data": ""}
        for share, logs, more in ((1, equal, {}), (1, alone, regular), (10, tenth, regular)):
            steps = max(1, round(seconds / share / step_s))
            say(f"seed {seed} of {seeds}: ours in {seconds / share:.0f} s, {steps:,} steps ...")
            settings = {"max_iters": steps, "eval_interval": steps, "eval_batches": 1, "seed": seed}
            name = f"ours_{seed}_{share}{'_alone' if more else ''}"
            logs.append(train(OUT / name, **settings, **more)[0])
    if not default:
        plot(PICTURE, peers, [whole, *equal])
    return judge(whole, beginning, memory, peers, peers_extra, equal, alone, tenth)


def judge(
    whole: Log,
    beginning: Log,
    memory: Memory,
    peers: list[Log],
    peers_extra: list[Log],
    equal: list[Log],
    alone: list[Log],
    tenth: list[Log],
) -> Rows:
    """The rows on quality and memory."""
    seconds, goal = mean(log.total_s for log in peers), mean(log.losses[-1] for log in peers)
    reached = beginning.time_to(goal) or whole.time_to(goal)
    on_the_way = "not reached" if reached is None else f"{reached:.0f} s, {reached / seconds:.3f}"

    def below(logs: list[Log], others: list[Log] = peers) -> str:
        gaps = [a.losses[-1] - b.losses[-1] for a, b in zip(others, logs, strict=True)]
        return f"{mean(gaps):.3f} (worst {min(gaps):.3f})"

    def taken(logs: list[Log]) -> str:
        return f"{mean(log.total_s for log in logs):.0f} s, {spread(logs)}"

    return [
        ("reference: time, loss", f"{seconds:.0f} s, {spread(peers)}", ""),
        ("reference, extra poems too: time, loss", taken(peers_extra), ""),
        ("ours, default: time, loss", f"{whole.total_s:.0f} s, {whole.losses[-1]:.3f}", ""),
        (
            "ours, default: passes the reference's loss at, share of its time",
            on_the_way,
            "at most 0.1",
        ),
        (
            "ours in a tenth of the reference's time (fewer steps): time, loss",
            taken(tenth),
            "",
        ),
        ("nats below the reference then, regular poems alone for both", below(tenth), "at least 0"),
        ("ours in the reference's time, regular poems alone: time, loss", taken(alone), ""),
        ("nats below the reference, regular poems alone for both", below(alone), "at least 1.05"),
        ("ours in the reference's time, extra poems too: time, loss", taken(equal), ""),
        (
            "nats below the reference, extra poems for both",
            below(equal, peers_extra),
            "at least 1.05",
        ),
        ("nats below the reference, extra poems for ours alone", below(equal), "at least 1.05"),
        ("main memory of the default training, peak", megabytes(memory.peak), "at most 600 MB"),
        ("its rise in the second half", megabytes(memory.rise()), "0"),
    ]


def spread(logs: list[Log]) -> str:
    """The mean of the last losses and their range."""
    last = [log.losses[-1] for log in logs]
    return f"{mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"
