"""The output layer and the cross-entropy in one pass, without a tensor of logits for the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Rows whose logits exist at once: a product of many rows is faster, its logits need more memory. A
# third of the default batch; more on a GPU, which small products leave idle.
CHUNK = 768
GRAIN = 128  # fewer rows come in multiples of this, so that there are few sizes of products
IGNORE = -1  # a target that is not predicted: padding behind the end of a shorter text


def _chunk(rows: int, device: str) -> int:
    """How many rows at once: off the CPU as many as make equal parts of at most 16 CHUNK."""
    if device == "cpu":
        return CHUNK
    parts = max(1, -(-rows // (16 * CHUNK)))
    return GRAIN * max(1, -(-rows // (parts * GRAIN)))


class _LinearCrossEntropy(torch.autograd.Function):
    """See `linear_cross_entropy`. Forward also forms the gradients, as softmax - one-hot is at hand
    there; backward only scales them."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, gradients: bool) -> Tensor:
        device, ignored = x.device.type, targets == IGNORE
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        # Whole chunks: oneDNN makes and keeps a program for each new size of a product.
        size = _chunk(len(x), device)
        rest = -len(x) % (size if len(x) > size else GRAIN)
        xs, w = F.pad(x, (0, 0, 0, rest)).to(dtype), weight.to(dtype)
        targets = F.pad(targets.masked_fill(ignored, 0), (0, rest))
        ignored = F.pad(ignored, (0, rest), value=True)
        total = torch.zeros((), device=x.device)
        dx, dw = (torch.zeros_like(t) if gradients else None for t in (xs, weight))
        # Two tensors for all chunks, so that they stay in the cache (one where dtype is float32).
        logits = xs.new_empty(min(size, len(xs)), len(w))
        p = logits.to(torch.float32)
        for start in range(0, len(xs), size):
            chunk = slice(start, start + size)
            here, none = targets[chunk, None], ignored[chunk, None]
            p.copy_(torch.mm(xs[chunk], w.T, out=logits))
            # In place, but where torch does not say that its kernel may write over its input.
            p = torch.softmax(p, -1, out=p if device != "mps" else None)
            at_target = p.gather(1, here)
            # A probability that underflows would cost infinitely much: 1e-38 costs 87 nats.
            losses = -at_target.clamp(min=torch.finfo(torch.float32).tiny).log()
            total += losses.masked_fill(none, 0).sum()
            if gradients:
                error = logits.copy_(p.scatter_(1, here, at_target - 1))
                # Row by row: a mask would go over the whole tensor.
                error.index_fill_(0, none.squeeze(1).nonzero().squeeze(1), 0)
                torch.mm(error, w, out=dx[chunk])
                dw += error.T @ xs[chunk]
        if gradients:
            ctx.save_for_backward(dx[: len(x)].to(x.dtype), dw)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        return dx * grad, dw * grad, None, None


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """cross_entropy(x @ weight.T, targets, reduction="sum"), value and gradients equal to rounding.

    x (N, C), weight (V, C), targets (N,) -> scalar, the sum in nats over the targets that are not
    IGNORE. Products run in autocast's dtype where autocast is on, softmax and sums always in float32.

    6 N C V FLOPs, as the plain way: one product forward, two for the gradients, which are left out
    under no_grad. Memory: CHUNK x V logits in both dtypes, whatever N is; the plain way holds the
    N x V logits, their log-softmax and two gradients of that size at once, in float32. On a two-core CPU
    in bfloat16 this takes half the time of torch 2.13's chunked F.linear_cross_entropy
    (`python -m benchmarks loss`), which is why it exists.
    """
    return _LinearCrossEntropy.apply(x, weight, targets, torch.is_grad_enabled())
