"""Main memory of the default training over many steps: its peak, and whether it grows."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.common import ROOT, positive, publish, table
from benchmarks.runs import Memory, train
from command_line import Parser


def megabytes(count: int | None) -> str:
    """Bytes as megabytes, for a table."""
    return "not measured here" if count is None else f"{count / 1e6:,.0f} MB"


def verdict(memory: Memory, steps: int) -> str:
    """A table of what a training needed."""
    fifths = [memory.samples[i * len(memory.samples) // 5 :] for i in range(6)]
    highest = [max(a[: len(a) - len(b)], default=None) for a, b in pairwise(fifths)]
    rows = [
        ("peak", megabytes(memory.peak)),
        ("rise of the second half's highest over the first's", megabytes(memory.rise())),
        (
            "highest in each fifth; the last one writes the page",
            " · ".join(map(megabytes, highest)),
        ),
    ]
    return table((f"main memory over {steps:,} steps", ""), rows)


def main(argv: list[str]) -> None:
    """Train with the default config for `--steps` steps; print the table and keep it."""
    parser = Parser(prog="-m benchmarks memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 steps; keep nothing")
    parser.add_argument("--steps", type=positive, default=5000)
    args = parser.parse_args(argv)
    steps = 200 if args.quick else args.steps
    out_dir = ROOT / "out" / "benchmarks" / "memory"
    log, memory = train(out_dir, max_iters=steps, eval_batches=16)
    publish("memory", verdict(memory, log.steps), keep=not args.quick)
