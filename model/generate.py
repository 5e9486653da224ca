"""Writing: one character after another, each chosen by the model's probabilities.

A model of this size spends its time between operations, not in them, so the engine does as few as
it can. It keeps the keys and values of what was read (the cache), and its weights lie in the order
in which a row of characters reads them. One text alone goes through numpy arrays that share memory
with the tensors, since a call there costs a third of torch's; several texts go through torch
together. Both give what `GPT.forward` gives, to rounding.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, SHARPNESS, norm

EPS = torch.finfo(torch.float32).eps  # as in `norm`
CHUNK = 64  # columns whose random numbers are drawn at once

Array = Any  # a numpy array; this file needs none of numpy's names, only what its arrays can do

# What may come next: from the ids of each text so far to bool (V,) or (B, V), or None for anything.
Allowed = Callable[[Sequence[Sequence[int]]], Tensor | None]


@dataclass(frozen=True)
class Sampling:
    """How to choose: temperature (0: always the likeliest), from the `top_k` likeliest characters
    (0: all), from the likeliest ones that together have the probability `top_p`. Raises
    ValueError."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or above, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all) or above, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def greedy(self) -> bool:
        """Whether chance has no part. Dividing by less would overflow."""
        return self.temperature < 1e-6

    def weights(self, logits: Tensor) -> Tensor:
        """Logits over temperature, float32 (B, V) -> what each character weighs in the draw: its
        probability, or 0 where top_k or top_p leaves it out."""
        if 0 < self.top_k < logits.size(-1):
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        p = logits.softmax(-1)
        if self.top_p < 1:
            ordered = p.sort(descending=True).values
            enough = ordered.cumsum(-1) - ordered >= self.top_p  # the likelier ones suffice
            p = p * (p >= ordered.masked_fill(enough, 1).amin(-1, keepdim=True))
        return p


class Engine:
    """Writes with the weights that `model` has now."""

    def __init__(self, model: GPT) -> None:
        self.model = model = copy.deepcopy(model).eval().requires_grad_(False).float()
        self.config = config = model.config
        C, H = config.n_embd, config.n_head
        self.head_size = D = C // H
        # A rotation turns channel i together with i + D/2; side by side they are one complex number.
        pairs = torch.arange(D).view(2, D // 2).T.flatten()
        self.embedding = norm(model.wte.weight)
        self.layers = []
        for block in model.blocks:
            c_attn = block.attn.c_attn.weight.view(3, H, D, C).clone()
            c_attn[:2] = c_attn[:2, :, pairs]
            matrices = (
                c_attn.view(3 * C, C),
                block.attn.c_proj.weight,
                block.mlp.c_fc.weight,
                block.mlp.c_proj.weight,
            )
            self.layers.append([matrix.T.contiguous() for matrix in matrices])
        # The output layer, filled up to the square of an even number, as `draw` needs it.
        self.square = math.isqrt(config.vocab_size - 1) + 1
        self.square += self.square % 2
        self.head = self._fill(model.lm_head.weight.T, 0.0)
        self.bias = self._bias(torch.ones(config.vocab_size, dtype=torch.bool))
        rotary = model.blocks[0].attn.rotary
        turn = torch.complex(rotary.cos[:, : D // 2], rotary.sin[:, D // 2 :])
        # (block_size, q or k, 1, D / 2); q also carries its length and attention's scale.
        self.turn = torch.stack([SHARPNESS * turn / math.sqrt(D), turn], 1).unsqueeze(2)
        if self.head.device.type == "cpu":  # the same memory, for one text alone
            self._layers = [[matrix.numpy() for matrix in matrices] for matrices in self.layers]
            self._embedding, self._turn = self.embedding.numpy(), self.turn.numpy()
            self._mean = torch.full((D,), 1 / D).numpy()
            self._halves = torch.stack(self.head.chunk(2, 1))  # for two threads

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        seed: int = 0,
        numbers: Sequence[int] | None = None,
        stop: int | None = None,
        allowed: Allowed | None = None,
    ) -> Iterator[list[int | None]]:
        """Go on from the ids of each prompt, at least one id each; yield one id for each text, None
        for a text that is still being read or has ended: after `stop` (yielded too) or
        `max_new_tokens`.

        Text i draws from random numbers that `seed` and `numbers[i]` (default: i) decide alone. Past
        the block the model sees the last `block_size` ids. Raises ValueError.
        """
        sampling = sampling or Sampling()
        B, V, block_size = len(prompts), self.config.vocab_size, self.config.block_size
        rows = [list(prompt) for prompt in prompts]
        lengths = [len(row) for row in rows]
        if min(lengths, default=0) < 1 or not all(0 <= i < V for row in rows for i in row):
            raise ValueError("each prompt must have at least one id, each in the vocabulary")
        numbers = range(B) if numbers is None else numbers
        first, end = min(lengths), max(lengths) + max_new_tokens
        size = (self.config.n_layer, 2, B, self.config.n_head, min(block_size, end), self.head_size)
        device = self.head.device
        cache = torch.zeros(size, device=device)
        logits = torch.empty(B, self.square**2, device=device)
        alpha = 1.0 if sampling.greedy else 1 / sampling.temperature
        alone = B == 1 and device.type == "cpu"
        if alone:
            x, halves = torch.empty(1, self.config.n_embd), logits.view(2, 1, -1)
            cache, x_array = cache[:, :, 0].numpy(), x.numpy()
        noise, drawn = None, -1
        running = [True] * B
        for t in range(0 if first <= block_size else first - 1, end - 1):
            # Read column t; all texts stand at the same one, those with longer prompts still read.
            if t >= block_size:
                window = [row[t + 1 - block_size : t + 1] for row in rows]
                x = self.model.hidden(torch.tensor(window, device=device))[:, -1]
            elif alone:
                x_array[0] = self._read_one(rows[0][t], t, cache)
            else:
                x = self._read(torch.tensor([row[t] for row in rows], device=device), t, cache)
            if t + 1 < first:
                continue
            # Choose column t + 1.
            mask = allowed([row[: t + 1] for row in rows]) if allowed else None
            bias = self.bias if mask is None else self._bias(mask)
            if alone:
                bias, xs = bias.view(2, 1, -1), x.expand(2, 1, -1)
                torch.baddbmm(bias, xs, self._halves, alpha=alpha, out=halves)
            else:
                torch.addmm(bias, x, self.head, alpha=alpha, out=logits)
            if sampling.greedy:  # numpy's argmax is ten times as fast
                chosen = (logits.numpy() if device.type == "cpu" else logits).argmax(-1)
            else:
                chunk, column = divmod(t + 1, CHUNK)
                if chunk != drawn:
                    noise, drawn = self._noise(seed, numbers, chunk).to(device), chunk
                    noise = noise.numpy() if alone else noise
                p = sampling.weights(logits)
                chosen = draw(p.numpy() if alone else p, noise[column])
            new: list[int | None] = [None] * B
            for i, choice in enumerate(chosen.tolist()):
                if lengths[i] > t + 1:
                    continue
                rows[i].append(choice)
                if running[i]:
                    new[i] = choice
                    running[i] = choice != stop and t + 2 < lengths[i] + max_new_tokens
            yield new
            if not any(running):
                return

    def generate(self, prompts: Sequence[Sequence[int]], *args, **kwargs) -> list[list[int]]:
        """The new ids of each text; takes what `stream` takes."""
        texts: list[list[int]] = [[] for _ in prompts]
        for new in self.stream(prompts, *args, **kwargs):
            for text, i in zip(texts, new, strict=True):
                if i is not None:
                    text.append(i)
        return texts

    def _read(self, ids: Tensor, t: int, cache: Tensor) -> Tensor:
        """Read one character of each text, ids (B,), at position t: what the output layer reads,
        (B, C). cache: keys and values (n_layer, 2, B, H, T, D)."""
        x = self.embedding[ids]
        (B, C), H, D = x.shape, self.config.n_head, self.head_size
        for (c_attn, c_proj, mlp_fc, mlp_proj), kv in zip(self.layers, cache, strict=True):
            qkv = (norm(x) @ c_attn).view(B, 3, H, D)
            qk = torch.view_as_complex(norm(qkv[:, :2]).view(B, 2, H, D // 2, 2)) * self.turn[t]
            q, k = torch.view_as_real(qk).flatten(-2).unbind(1)
            kv[0, :, :, t], kv[1, :, :, t] = k, qkv[:, 2]
            keys, values = kv.flatten(1, 2)[:, :, : t + 1]  # (B * H, t + 1, D)
            weights = (q.reshape(B * H, 1, D) @ keys.transpose(1, 2)).softmax(-1)
            x = torch.addmm(x, (weights @ values).view(B, C), c_proj)
            x = torch.addmm(x, (norm(x) @ mlp_fc).relu_().square_(), mlp_proj)
        return norm(x)

    def _read_one(self, i: int, t: int, cache: Array) -> Array:
        """`_read` for a single text, in numpy arrays: cache (n_layer, 2, H, T, D) -> (C,)."""
        x = self._embedding[i]
        C, H, D = len(x), self.config.n_head, self.head_size
        for (c_attn, c_proj, mlp_fc, mlp_proj), kv in zip(self._layers, cache, strict=True):
            qkv = _norm_one(x).dot(c_attn).reshape(3, H, D)
            qk = qkv[:2]
            qk *= ((qk * qk).dot(self._mean)[..., None] + EPS) ** -0.5
            pairs = qk.view("complex64")
            pairs *= self._turn[t]
            kv[:, :, t] = qkv[1:]
            keys, values = kv[:, :, : t + 1]  # (H, t + 1, D)
            # Scores are within SHARPNESS * sqrt(D), as q and k are normalised: no maximum to subtract.
            weights = math.e ** (qkv[0].reshape(H, 1, D) @ keys.swapaxes(1, 2))
            weights /= weights.sum(-1, keepdims=True)
            x = x + (weights @ values).reshape(C).dot(c_proj)
            h = _norm_one(x).dot(mlp_fc).clip(0)
            h *= h
            x = x + h.dot(mlp_proj)
        return _norm_one(x)

    def _fill(self, matrix: Tensor, value: float) -> Tensor:
        """(…, V) -> (…, square * square)."""
        return F.pad(matrix, (0, self.square**2 - self.config.vocab_size), value=value).contiguous()

    def _bias(self, mask: Tensor) -> Tensor:
        """What to add to logits so that only what `mask` holds, bool (V,) or (B, V), is chosen."""
        bias = torch.zeros(mask.shape, device=self.head.device)
        return self._fill(bias.masked_fill_(~mask.to(bias.device), -math.inf), -math.inf)

    def _noise(self, seed: int, numbers: Sequence[int], chunk: int) -> Tensor:
        """Exponential random numbers for CHUNK columns of each text: (CHUNK, B, 2, square)."""
        size, drawn = (CHUNK, 2, self.square), []
        for number in numbers:
            key = random.Random(f"{seed} {number} {chunk}").getrandbits(64)
            uniform = torch.rand(size, generator=torch.Generator().manual_seed(key))
            drawn.append(-uniform.clamp_(min=2**-25).log_())
        return torch.stack(drawn, 1)


def _norm_one(x: Array) -> Array:
    """`norm` for one vector, a numpy array (C,)."""
    return x * (len(x) / (float(x.dot(x)) + len(x) * EPS)) ** 0.5


def draw(p: Array, noise: Array) -> Array:
    """Draw from weights p (B, G * G), in proportion -> (B,); tensors or numpy arrays.

    An exponential race: argmax p / E is distributed as p where all E are exponential. It runs in
    two heats, first among G groups, then within the winning group, and so takes 2G random numbers
    (B, 2, G) and not G * G. Unlike the inverse of a cumulative sum it gives the same character when p
    changes by rounding, as it does with the number of texts in a batch.
    """
    B, _, G = noise.shape
    groups = p.reshape(B, G, G)
    group = (groups.sum(-1) / noise[:, 0]).argmax(-1)
    within = groups[list(range(B)), group]
    return group * G + (within / noise[:, 1]).argmax(-1)
