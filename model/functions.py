"""Functions of the model with their gradients written out. What autograd makes of the plain
expressions goes over memory more often, and that is most of their time on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = (length.square() / x.size(-1) + torch.finfo(x.dtype).eps).rsqrt()
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        along = torch.linalg.vecdot(y, grad).unsqueeze(-1) / y.size(-1)
        return torch.addcmul(grad, y, along, value=-1).mul_(scale)


def norm(x: Tensor) -> Tensor:
    """Scale each vector to a root mean square of 1 (RMSNorm without gain, arXiv:1910.07467)."""
    if x.device.type != "cpu":
        return F.rms_norm(x, (x.size(-1),))  # one fused kernel
    return _Norm.apply(x)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = x.relu()
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return (grad * y).mul_(2)


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (Primer, arXiv:2109.08668)."""
    return _SquaredReLU.apply(x)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv: Tensor, bias: Tensor) -> Tensor:
        ctx.H = H = len(bias)
        ctx.scale = (qkv.size(-1) // 3 // H) ** -0.5
        with torch.autocast(qkv.device.type, enabled=False):
            q, k, v = heads = _part(qkv, 3, H)
            # In place: one tensor of this size is in the cache's way, not three.
            weights = bias.repeat(len(qkv), 1, 1).baddbmm_(q, k.mT, alpha=ctx.scale)
            torch.softmax(weights, -1, out=weights)
            ctx.save_for_backward(heads, weights)
            return _join((weights @ v)[None], H, qkv.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        heads, weights = ctx.saved_tensors
        (q, k, v), grads = heads, torch.empty_like(heads)
        T, H = weights.size(-1), ctx.H
        with torch.autocast(grad.device.type, enabled=False):
            [dy] = _part(grad, 1, H)
            torch.bmm(weights.mT, dy, out=grads[2])
            # What autograd calls for a softmax.
            dscores = torch._softmax_backward_data(dy @ v.mT, weights, -1, weights.dtype)
            torch.bmm(dscores, k, out=grads[0])
            torch.bmm(dscores.mT, q, out=grads[1])
            grads[:2] *= ctx.scale
            return _join(grads, H, grad.dtype), dscores.view(len(grad), H, T, T).sum(0)


def _part(x: Tensor, n: int, H: int) -> Tensor:
    """The heads of n things side by side: x (B, T, n C) -> (n, B H, T, D), in float32 at least."""
    heads = x.unflatten(2, (n, H, -1)).permute(2, 0, 3, 1, 4)  # (n, B, H, T, D)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return heads.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(1, 2)


def _join(heads: Tensor, H: int, dtype: torch.dtype) -> Tensor:
    """The opposite of `_part`: heads (n, B H, T, D) -> (B, T, n C)."""
    x = heads.unflatten(1, (-1, H)).permute(1, 3, 0, 2, 4)  # (B, T, n, H, D)
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(2)


def attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v for all heads, in float32 whatever qkv is.

    qkv (B, T, 3 C), the queries, keys and values of each head side by side, and bias (H, T, T)
    -> (B, T, C). It holds two tensors of B H T^2 numbers: for short texts.
    """
    return _Attention.apply(qkv, bias)
