"""Where the time of a training step goes: by part, and by torch's operators."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity

from benchmarks.common import publish, table
from benchmarks.steps import Step
from command_line import Parser
from data.batches import Batches
from data.corpus import POEMS, Corpus, read_documents
from model.machine import pick_dtype, set_up_memory
from train_settings import TrainConfig, check_memory

WARM = 5  # steps before anything is timed


def main(argv: list[str]) -> None:
    """Print both tables and keep them in RESULTS.md."""
    parser = Parser(prog="-m benchmarks profile", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps; keep nothing")
    parser.add_argument("--n_layer", type=int, default=TrainConfig.n_layer)
    parser.add_argument("--n_embd", type=int, default=TrainConfig.n_embd)
    parser.add_argument(
        "--batch_size", type=int, default=TrainConfig.batch_size, help="characters in a step"
    )
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16 or auto")
    args = parser.parse_args(argv)
    settings = TrainConfig(n_layer=args.n_layer, n_embd=args.n_embd, batch_size=args.batch_size)
    set_up_memory()
    dtype = pick_dtype(args.dtype, "cpu")
    corpus = Corpus(read_documents(POEMS))
    config = settings.model_config(len(corpus.vocabulary))
    check_memory(settings, config, "cpu")
    batches = Batches(corpus.train, corpus.vocabulary, config.block_size, args.batch_size)
    step = Step(config, dtype, timed=True)

    steps = 10 if args.quick else 50
    tokens = 0
    for i in range(WARM + steps):
        if i == WARM:
            step.seconds.clear()
        with step.part("making the batch"):
            idx, targets = batches.shuffled(0, i)
        step(idx, targets)
        tokens += idx.numel() if i >= WARM else 0
    rows = [
        (name, f"{1e3 * seconds / steps:.2f}", f"{seconds / sum(parts(step).values()):.1%}")
        for name, seconds in sorted(parts(step).items(), key=lambda item: -item[1])
    ]
    speed = tokens / sum(parts(step).values())
    text = (
        f"n_layer {config.n_layer}, n_embd {config.n_embd}, {args.batch_size:,} characters a step, "
        f"{str(step.dtype).removeprefix('torch.')} products: {speed:,.0f} characters/s.\n\n"
        f"{table(('part of a step', 'ms', 'share'), rows)}\n\n{by_operator(step, batches)}"
    )
    publish("profile", text, keep=not args.quick)


def parts(step: Step) -> dict[str, float]:
    """Seconds of the parts of a step that do not overlap: what the blocks' halves leave of forward
    and backward becomes a part of its own."""
    found = defaultdict(float, step.seconds)
    for way in ("forward", "backward"):
        inner = sum(seconds for name, seconds in found.items() if name.startswith(f"{way}: "))
        found[f"{way}: embedding, norms, sums"] = found.pop(way) - inner
    return found


def by_operator(step: Step, batches: Batches, steps: int = 10, count: int = 12) -> str:
    """The operators with the most time of their own, per step, by torch's profiler."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for i in range(steps):
            step(*batches.shuffled(0, i))
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [
        (
            f"`{event.key}`",
            f"{event.self_cpu_time_total / steps / 1e3:.2f}",
            f"{event.count / steps:.0f}",
            f"{event.self_cpu_time_total / total:.1%}",
        )
        for event in events[:count]
    ]
    return table(("operator", "ms a step", "calls", "share"), rows)
