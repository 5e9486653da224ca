"""The arithmetic of a training step, and how much of it the machine can do."""

from __future__ import annotations

import torch

from model.gpt import GPTConfig
from model.machine import matmul_rate

FORMULA = "6 (12 n_layer n_embd² + n_embd (common + r rare)) + 12 n_layer T n_embd"


def training_flops(config: GPTConfig, T: float, r: float) -> float:
    """FLOPs of matrix products, forward and backward, for one character of a text of T.

    A multiplication and an addition count two. Each weight that takes part in a product costs 6
    (2 forward, 4 backward): 12 n_embd² a block, n_embd for each row of the output layer, none in the
    embedding table. The rows of rare characters take part only where the next character is rare, in
    the share `r` of all. Attention's two products with T keys cost 12 n_layer T n_embd, the masked
    half included (PaLM, arXiv:2204.02311, appendix B). Norms, softmax and the optimizer's own
    products are not counted, so that a share of the peak is of useful work.
    """
    rare = max(0, config.vocab_size - config.cutoff)
    rows = config.vocab_size - rare + (rare > 0) + r * rare
    weights = config.n_layer * 12 * config.n_embd**2 + config.n_embd * rows
    return 6 * weights + 12 * config.n_layer * T * config.n_embd


def peak(dtype: torch.dtype) -> float:
    """FLOP/s of this machine's matrix products at their best size."""
    return max(matmul_rate(dtype, size=size, runs=6) for size in (512, 1024, 2048))
