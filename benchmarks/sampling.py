"""Writing characters beside transformers' GPT-2 with its cache on, and beside what the machine
allows.

Both models have the same shape and write the same number of characters by as many threads as there
are cores; they take turns, and each figure is the median of its rounds. Ours is trained for a few
steps, until rare characters are as rare as in the poems, since it looks at them only where one may be
next; the peer's weights, which its speed does not depend on, are random. Both sample from all
characters, without top_k. The memory's limit is the time in which this machine, one thread, reads as
many bytes as the weights have that each character needs, those of rare characters left out; a batch
reads them once for all its texts. The arithmetic's limit is the rate of its float32 matrix products
at their best size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.common import SIZES, publish, table
from benchmarks.flops import peak, training_flops
from benchmarks.reference import build
from benchmarks.steps import Step
from command_line import Parser
from data.batches import Batches
from data.corpus import POEMS, Corpus, read_documents
from model.choose import Sampling
from model.generate import Engine
from model.gpt import GPT, GPTConfig

CHARACTERS = 63  # with the start, what transformers' model has positions for
KINDS = {"greedy": 0.0, "sampled": 1.0, "sampled at 0.8": 0.8}  # their temperatures
TRAINED = 100  # steps, until characters are about as frequent as in the poems
GOALS = {1: 7, 64: 5}  # by the number of texts, times transformers' characters/s


def seconds(writers: list[Callable[[], object]], rounds: int) -> list[float]:
    """The median time of each, taking turns, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in writers]
    for _ in range(rounds + 1):
        for writer, times in zip(writers, taken, strict=True):
            started = time.perf_counter()
            writer()
            times.append(time.perf_counter() - started)
    return [median(times[1:]) for times in taken]


def read_seconds(size: int, rounds: int) -> float:
    """The time in which one thread reads `size` bytes, again and again, as weights are."""
    numbers, threads = torch.ones(size // 4), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return seconds([lambda: [numbers.sum() for _ in range(20)]], rounds)[0] / 20
    finally:
        torch.set_num_threads(threads)


def a_model() -> tuple[GPT, float]:
    """A model of the peers' shape after a few steps of training, so that rare characters are as
    rare as in the poems, and their share there."""
    corpus = Corpus(read_documents(POEMS))
    config = GPTConfig(len(corpus.vocabulary), **SIZES)
    batches, step = Batches(corpus.train, corpus.vocabulary, 65, 2304), Step(config, torch.float32)
    rare = count = 0
    for i in range(TRAINED):
        idx, targets = batches.shuffled(0, i)
        step(idx, targets)
        rare, count = rare + int((targets >= config.cutoff).sum()), count + targets.numel()
    return step.model, rare / count


def main(argv: list[str]) -> None:
    """Print the table and keep it in RESULTS.md."""
    parser = Parser(prog="-m benchmarks sampling", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; keep nothing")
    rounds = 3 if parser.parse_args(argv).quick else 15

    model, rare = a_model()
    vocab_size = model.config.vocab_size
    engine, peer = Engine(model), build(vocab_size).eval()
    peer.generation_config.eos_token_id = None  # neither model stops early
    unread = model.wte.weight.numel() + model.lm_head.rare.weight.numel()
    needed = sum(p.numel() for p in model.parameters()) - unread
    limit = read_seconds(4 * needed, rounds)
    flops, best = training_flops(model.config, CHARACTERS / 2, rare) / 3, peak(torch.float32)

    rows = []
    for count in GOALS:
        for name, temperature in KINDS.items():

            def ours(count=count, temperature=temperature) -> int:
                found = engine.generate([[0]] * count, CHARACTERS, Sampling(temperature))
                return sum(map(len, found))

            @torch.inference_mode()
            def theirs(count=count, temperature=temperature) -> int:
                start = torch.zeros(count, 1, dtype=torch.long)
                found = peer.generate(
                    start,
                    attention_mask=torch.ones_like(start),
                    max_new_tokens=CHARACTERS,
                    do_sample=temperature > 0,
                    temperature=temperature or None,
                    top_k=None,
                    use_cache=True,
                    pad_token_id=0,
                )
                return found[:, 1:].numel()

            if not ours() == theirs() == count * CHARACTERS:
                raise RuntimeError("the two did not write the same number of characters")
            mine, other = seconds([ours, theirs], rounds if count == 1 else max(3, rounds // 3))
            speed, peers = (count * CHARACTERS / taken for taken in (mine, other))
            goal = GOALS[count]
            rows.append(
                (
                    f"{count} × {name}",
                    f"{speed:,.0f}",
                    f"{peers:,.0f}",
                    f"{speed / peers:.1f}",
                    goal,
                    f"{limit * CHARACTERS / mine:.0%}",
                    f"{speed * flops / best:.0%}",
                    f"{goal * peers * flops / best:.0%}",
                )
            )
    header = ("texts", "ours, characters/s", "transformers", "ratio", "goal")
    header += ("of the memory's limit", "of the arithmetic's", "the goal needs")
    text = table(header, rows)
    text += (
        f"\n\nWeights read for a character: {4 * needed / 1e6:.1f} MB in {limit * 1e6:.0f} µs. "
        f"Arithmetic of a character: {flops / 1e6:.2f} MFLOP, at most {best / 1e9:.0f} GFLOP/s."
    )
    publish("sampling", text, keep=rounds > 3)
