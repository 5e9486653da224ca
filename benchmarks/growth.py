"""How the speed of training changes with each size of the model, beside its arithmetic."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.common import publish, table
from benchmarks.flops import FORMULA, peak, training_flops
from benchmarks.steps import speed
from command_line import Parser
from data.corpus import POEMS, Corpus, read_documents
from data.vocabulary import BOUNDARY
from model.gpt import GPTConfig
from model.machine import pick_dtype, set_up_memory

BASE = GPTConfig(vocab_size=6244, block_size=64)
SIZES = {
    "n_embd": (64, 128, 256, 512),
    "n_layer": (1, 3, 6, 12),
    "vocab_size": (1000, 6244, 12_000, 24_000),
    "block_size": (32, 64, 128, 256, 512, 1024),
}
BATCH = 2304  # characters in a step; one text where it is longer


def poems() -> Tensor:
    """The ids of all poems in a row."""
    corpus = Corpus(read_documents(POEMS))
    return torch.tensor(corpus.vocabulary.encode(BOUNDARY.join(corpus.documents)))


def main(argv: list[str]) -> None:
    """Print the table of growth and keep it in RESULTS.md."""
    parser = Parser(prog="-m benchmarks growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes; keep nothing")
    quick = parser.parse_args(argv).quick
    set_up_memory()
    dtype = pick_dtype("auto", "cpu")
    best = peak(dtype)
    rows, text = [], poems()
    for name, values in SIZES.items():
        for value in values[:3] if quick else values:
            config = replace(BASE, **{name: value})
            # With more or fewer characters, each stands for as many.
            ids = text * config.vocab_size // (int(text.max()) + 1)
            found = speed(config, dtype, ids, BATCH, steps=3 if quick else 10)
            rare = float((ids >= config.cutoff).double().mean())
            flops = training_flops(config, config.block_size, rare)
            rows.append(
                (
                    f"{name} {value:,}",
                    f"{found:,.0f}",
                    f"{flops / 1e6:,.1f}",
                    f"{found * flops / best:.0%}",
                )
            )
    header = ("size", "characters/s", "MFLOP a character", "share of peak")
    head = (
        f"Base: n_layer {BASE.n_layer}, n_head {BASE.n_head}, n_embd {BASE.n_embd}, vocabulary "
        f"{BASE.vocab_size:,}, texts of {BASE.block_size}, {BATCH:,} characters a step; one size "
        f"changes at a time. {str(dtype).removeprefix('torch.')} products, peak "
        f"{best / 1e9:,.0f} GFLOP/s. The texts are cut from the poems in a row, without regard to their "
        f"borders. FLOPs: {FORMULA}, with T the block size and r the share of rare characters.\n\n"
    )
    publish("growth", head + table(header, rows), keep=not quick)
