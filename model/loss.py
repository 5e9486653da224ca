"""The output layer and the cross-entropy in one pass, without a tensor of logits for the batch."""

from __future__ import annotations

import torch
from torch import Tensor


class _LinearCrossEntropy(torch.autograd.Function):
    """See `linear_cross_entropy`. Forward also forms the gradients, as softmax - one-hot is at hand
    there; backward only scales them."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, gradients: bool
    ) -> Tensor:
        xs, w = x.to(dtype), weight.to(dtype)
        total = torch.zeros((), device=x.device)
        dx, dw = (torch.zeros_like(t) if gradients else None for t in (x, weight))
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            p = torch.softmax(xs[chunk] @ w.T, -1, dtype=torch.float32)
            at_target = p.gather(1, targets[chunk, None])
            # A probability that underflows would cost infinitely much: 1e-38 costs 87 nats.
            total -= at_target.clamp(min=torch.finfo(torch.float32).tiny).log().sum()
            if gradients:
                error = p.scatter_(1, targets[chunk, None], at_target - 1).to(dtype)
                dx[chunk] = error @ w
                dw += error.T @ xs[chunk]
        ctx.save_for_backward(dx, dw)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dw = ctx.saved_tensors
        return dx * grad, dw * grad, None, None, None


CHUNK = 256  # rows whose logits exist at once: 6 MB at 6,000 characters, about a core's cache


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = -1, reduction: str = "mean"
) -> Tensor:
    """cross_entropy(x @ weight.T, targets), value and gradients equal to rounding.

    x (N, C), weight (V, C), targets (N,) -> scalar, in nats; `reduction` is "mean" or "sum" over
    the targets that are not `ignore_index`. Products run in autocast's dtype where autocast is on,
    softmax and sums always in float32.

    6 N C V FLOPs, as the plain way: one product forward, two for the gradients, which are left out
    under no_grad. Memory: CHUNK x V floats, whatever N is; the plain way holds the N x V
    logits, their log-softmax and two gradients of that size at once, in float32. On a two-core CPU
    in bfloat16 this takes half the time of torch 2.13's chunked F.linear_cross_entropy
    (`python -m benchmarks loss`), which is why it exists.
    """
    kept = targets != ignore_index
    if not kept.all():
        x, targets = x[kept], targets[kept]
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    total = _LinearCrossEntropy.apply(x, weight, targets, dtype, torch.is_grad_enabled())
    return total / len(targets) if reduction == "mean" else total
