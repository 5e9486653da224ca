"""How the speed of training changes with each size of the model, beside its arithmetic."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.common import publish, table
from benchmarks.flops import FORMULA, peak, training_flops
from benchmarks.steps import speed
from command_line import Parser
from model.gpt import GPTConfig
from model.machine import keep_freed_memory, pick_dtype

BASE = GPTConfig(vocab_size=6301, block_size=64)
SIZES = {
    "n_embd": (64, 128, 256, 512),
    "n_layer": (1, 3, 6, 12),
    "vocab_size": (1000, 6301, 12_000, 24_000),
    "block_size": (32, 64, 128, 256, 512, 1024),
}
BATCH = 2304  # characters in a step; one text where it is longer


def main(argv: list[str]) -> None:
    """Print the table of growth and keep it in RESULTS.md."""
    parser = Parser(prog="benchmarks growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes; keep nothing")
    quick = parser.parse_args(argv).quick
    keep_freed_memory()
    dtype = pick_dtype("auto", "cpu")
    best = peak(dtype)
    rows = []
    for name, values in SIZES.items():
        for value in values[:3] if quick else values:
            config = replace(BASE, **{name: value})
            found = speed(config, dtype, BATCH, steps=3 if quick else 10)
            flops = training_flops(config, config.block_size)
            rows.append(
                (
                    f"{name} {value:,}",
                    f"{found:,.0f}",
                    f"{flops / 1e6:,.1f}",
                    f"{found * flops / best:.0%}",
                )
            )
    header = ("size", "characters/s", "MFLOP a character", "share of peak")
    text = (
        f"Base: n_layer {BASE.n_layer}, n_head {BASE.n_head}, n_embd {BASE.n_embd}, vocabulary "
        f"{BASE.vocab_size:,}, texts of {BASE.block_size}, {BATCH:,} characters a step; one size "
        f"changes at a time. {str(dtype).removeprefix('torch.')} products, peak "
        f"{best / 1e9:,.0f} GFLOP/s. FLOPs: {FORMULA}, with T the block size.\n\n"
    )
    publish("growth", text + table(header, rows), keep=not quick)
