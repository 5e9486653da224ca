"""Writing: one character after another, each chosen by the model's probabilities.

A model of this size spends its time between operations, not in them, so the engine does as few as
it can, and does them in numpy, on the CPU: a call there costs a third of torch's. It keeps the keys
and values of what was read (the cache), and its weights lie in the order in which a row of
characters reads them. It gives what `GPT.forward` gives, to rounding; where rounding could change a
choice, `GPT.forward` itself decides.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model.gpt import GPT, GPTConfig, norm

EPS = torch.finfo(torch.float32).eps  # as in `norm`
CHUNK = 64  # columns whose random numbers are drawn at once
# Nats by which the winner must lead. Rounding moves a logit by less than a tenth of this.
LEAD = 1e-4

Array = np.ndarray

# What may come next: from the ids of all texts so far (B, T) to bool (V,) or (B, V), or None for
# anything.
Allowed = Callable[[Array], Array | None]


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

    def weigh(self, logits: Array) -> None:
        """Turn logits over temperature, float32 (B, V), into what each character weighs in the
        draw: a multiple of its probability, or 0 where top_k or top_p leaves it out."""
        V = logits.shape[-1]
        if 0 < self.top_k < V:
            least = np.partition(logits, V - self.top_k)[:, V - self.top_k, None]
            np.copyto(logits, -np.inf, where=logits < least)
        logits -= logits.max(-1, keepdims=True)
        np.exp(logits, out=logits)
        if self.top_p < 1:
            ordered = np.sort(logits)[:, ::-1]
            likelier = ordered.cumsum(-1) - ordered  # the weight of those before each
            enough = likelier >= self.top_p * ordered.sum(-1, keepdims=True)
            least = np.where(enough, np.inf, ordered).min(-1, keepdims=True)
            np.copyto(logits, 0, where=logits < least)


class Engine:
    """Writes with the weights that `model` has now, on the CPU."""

    def __init__(self, model: GPT) -> None:
        self.model = model = copy.deepcopy(model).eval().requires_grad_(False).float().cpu()
        self.config = config = model.config
        C, H = config.n_embd, config.n_head
        D = C // H
        self._embedding = norm(model.wte.weight).numpy()
        self._layers = []
        for block in model.blocks:
            c_attn = block.attn.c_attn.weight * C**0.5  # what reads a unit vector restores sqrt(C)
            c_attn[:C] /= D**0.5  # attention's scale, on W_q
            matrices = [
                c_attn,
                block.attn.c_proj.weight,
                block.mlp.c_fc.weight * C**0.5,
                block.mlp.c_proj.weight,
            ]
            self._layers.append([matrix.T.contiguous().numpy() for matrix in matrices])
        self._head = (model.lm_head.weight * C**0.5).T.contiguous().numpy()
        # The heads' liking for a distance, the query's own place last: (H, 1, block_size).
        self._liking = [
            block.attn.distance_bias.flip(1).unsqueeze(1).numpy() for block in model.blocks
        ]
        self._ones = np.ones(config.block_size, np.float32)

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
        lengths = [len(prompt) for prompt in prompts]
        if not min(lengths, default=0) or not all(0 <= i < V for row in prompts for i in row):
            raise ValueError("each prompt must have at least one id, each in the vocabulary")
        first = min(lengths)
        ids = np.zeros((B, max(lengths) + max_new_tokens), int)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        choose = Choice(sampling, V, seed, range(B) if numbers is None else numbers)
        cache = Cache(self.config, B, min(block_size, len(ids[0])))
        running = [True] * B
        for t in range(0 if first <= block_size else first - 1, len(ids[0]) - 1):
            # Read column t; all texts stand at the same one, those with longer prompts still read.
            x = self._read(ids[:, t], t, cache) if t < block_size else self._look(ids[:, : t + 1])
            if t + 1 < first:
                continue
            # Choose column t + 1.
            np.matmul(x * choose.sharper, self._head, out=choose.logits)
            mask = allowed(ids[:, : t + 1]) if allowed else None
            chosen, clear = choose(t + 1, mask)
            new: list[int | None] = [None] * B
            for i, choice in enumerate(chosen.tolist()):
                if t + 1 < lengths[i]:
                    continue
                if running[i]:
                    if not clear[i]:
                        choose.logits[i] = self._plain(ids[i, : t + 1]) * choose.sharper
                        choice = int(choose(t + 1, mask, slice(i, i + 1))[0][0])
                    new[i] = choice
                    running[i] = choice != stop and t + 2 < lengths[i] + max_new_tokens
                ids[i, t + 1] = choice
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

    def _read(self, ids: Array, t: int, cache: Cache) -> Array:
        """Read one character of each text, ids (B,), at position t: what the output layer reads, as
        vectors of length 1 (B, C)."""
        x = self._embedding[ids]
        layers = zip(self._layers, self._liking, cache.layers, strict=True)
        for (c_attn, c_proj, mlp_fc, mlp_proj), liking, (keys, values, kv) in layers:
            np.matmul(_unit(x), c_attn, out=cache.qkv)
            kv[:, :, :, t] = cache.kv
            weights = cache.q @ keys[..., : t + 1]  # (B, H, 1, t + 1)
            weights += liking[..., -t - 1 :]
            weights -= weights.max(-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= np.vecdot(weights, self._ones[: t + 1], keepdims=True)
            np.matmul(weights, values[:, :, : t + 1], out=cache.heads)
            x = x + cache.y @ c_proj
            h = np.matmul(_unit(x), mlp_fc, out=cache.h)
            np.maximum(h, cache.zero, out=h)
            h *= h
            x += h @ mlp_proj
        return _unit(x)

    @torch.inference_mode()
    def _look(self, ids: Array) -> Array:
        """What `_read` gives, behind ids (B, T) read anew as far as the block holds them."""
        window = torch.from_numpy(ids[:, -self.config.block_size :])
        return _unit(self.model.hidden(window)[:, -1].numpy())

    @torch.inference_mode()
    def _plain(self, ids: Array) -> Array:
        """The logits behind ids (T,) by the plain model, without cache and company: (V,)."""
        window = torch.from_numpy(ids[-self.config.block_size :])
        return self.model(window[None])[0][0, -1].numpy()


class Cache:
    """Keys and values of B texts of up to T characters, and room for those of the next one: allocated
    once, with the views in which a step reads and writes them."""

    def __init__(self, config: GPTConfig, B: int, T: int) -> None:
        C, H = config.n_embd, config.n_head
        D = C // H
        whole = np.zeros((config.n_layer, B, 2, H, T, D), np.float32)
        # Of each layer keys (B, H, D, T), values (B, H, T, D) and both (B, 2, H, T, D).
        self.layers = [(kv[:, 0].swapaxes(2, 3), kv[:, 1], kv) for kv in whole]
        qkv = np.empty((B, 3, H, D), np.float32)
        self.qkv = qkv.reshape(B, 3 * C)
        self.kv = qkv[:, 1:]  # (B, 2, H, D)
        self.q = qkv[:, 0, :, None]  # (B, H, 1, D)
        self.heads = np.empty((B, H, 1, D), np.float32)
        self.y = self.heads.reshape(B, C)
        self.h = np.empty((B, 4 * C), np.float32)
        self.zero = np.zeros_like(self.h)  # numpy's maximum of two arrays is the fast one


class Choice:
    """Chooses the next character of each text from `logits` (B, V), which hold the model's logits
    times `sharper` and are spoilt by it."""

    def __init__(self, sampling: Sampling, V: int, seed: int, numbers: Sequence[int]) -> None:
        self.sampling = sampling
        self.sharper = 1.0 if sampling.greedy else 1 / sampling.temperature
        self._groups = math.isqrt(V - 1) + 1  # see `_draw`
        self._ones = np.ones(self._groups, np.float32)
        self._weights = np.zeros((len(numbers), self._groups**2), np.float32)
        self.logits = self._weights[:, :V]
        self._seed, self._numbers, self._chunk = seed, numbers, -1

    def __call__(
        self, column: int, mask: Array | None, rows: slice = slice(None)
    ) -> tuple[Array, Array]:
        """The characters of these rows for a column, and whether each is clear, whatever the
        rounding: both (rows,)."""
        logits = self.logits[rows]
        if mask is not None:
            np.copyto(logits, -np.inf, where=~(mask[rows] if mask.ndim == 2 else mask))
        if not self.sampling.greedy:
            self.sampling.weigh(logits)
            return self._draw(self._weights[rows], self._noise(column)[rows])
        best, places = logits.argmax(-1), np.arange(len(logits))
        least = logits[places, best] - LEAD
        logits[places, best] = -np.inf
        return best, logits.max(-1) < least

    def _noise(self, column: int) -> Array:
        """Exponential random numbers for a column of each text: (B, 2, groups)."""
        chunk, place = divmod(column, CHUNK)
        if chunk != self._chunk:
            size, drawn = (CHUNK, 2, self._groups), []
            for number in self._numbers:
                key = random.Random(f"{self._seed} {number} {chunk}").getrandbits(64)
                drawn.append(np.random.default_rng(key).standard_exponential(size, np.float32))
            self._chunk, self._drawn = chunk, np.maximum(np.stack(drawn, 1), 2**-25)
        return self._drawn[place]

    def _draw(self, weights: Array, noise: Array) -> tuple[Array, Array]:
        """Draw from weights (B, G * G), in proportion, by noise (B, 2, G).

        An exponential race: argmax w / E is distributed as w where all E are exponential. It runs in
        two heats, first among G groups (each takes every G-th character), then within the winning
        group, and so takes 2G random numbers and not G * G.
        """
        B, _, G = noise.shape
        table = weights.reshape(B, G, G)
        first = (self._ones @ table) / noise[:, 0]
        group = first.argmax(-1)
        second = table[np.arange(B), :, group] / noise[:, 1]
        place = second.argmax(-1)
        least = math.exp(-LEAD * max(1, self.sharper))
        return place * G + group, _clear(first, least) & _clear(second, least)


def _clear(scores: Array, least: float) -> Array:
    """Whether the highest of each row of scores (B, N) times `least` is above all others: (B,)."""
    scores = np.partition(scores, -2)
    return scores[:, -2] < scores[:, -1] * least


def _unit(x: Array) -> Array:
    """Vectors (…, n) at length 1, with the epsilon of `norm`."""
    return x / np.sqrt(np.vecdot(x, x, keepdims=True) + x.shape[-1] * EPS)
