"""Writing: one character after another, each chosen by the model's probabilities.

A model of this size spends its time between operations, not in them, so the engine does as few as
it can, and does them in numpy, on the CPU: a call there costs a third of torch's. It keeps the keys
and values of what was read (the cache), and its weights lie in the order in which a row of
characters reads them. It gives what `GPT.forward` gives, to rounding; where rounding could change which
character wins, `GPT.forward` itself decides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from model.choose import Choosing, Sampling
from model.gpt import GPT, GPTConfig, norm

EPS = torch.finfo(torch.float32).eps  # as in `norm`
FAR = 50.0  # nats; e^50 times a block's length is far from what float32 holds, and so is e^-50
Array = np.ndarray

# What may come next: from the ids of all texts so far (B, T) to bool (V,) or (B, V), or None for
# anything.
Allowed = Callable[[Array], Array | None]


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
        head = model.lm_head
        self._common, self._rare = (
            None if layer is None else (layer.weight * C**0.5).T.contiguous().numpy()
            for layer in (head.common, head.rare)
        )
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
        numbers = range(B) if numbers is None else numbers
        choose = Choosing(self._common, self._rare, sampling, seed, numbers, allowed is not None)
        cache = Cache(self.config, B, min(block_size, len(ids[0])))
        running = [True] * B
        for t in range(0 if first <= block_size else first - 1, len(ids[0]) - 1):
            # Read column t; all texts stand at the same one, those with longer prompts still read.
            x = self._read(ids[:, t], t, cache) if t < block_size else self._look(ids[:, : t + 1])
            if t + 1 < first:
                continue
            # Choose column t + 1.
            mask = allowed(ids[:, : t + 1]) if allowed else None
            chosen, clear = choose(t + 1, x, mask)
            new: list[int | None] = [None] * B
            for i, choice in enumerate(chosen.tolist()):
                if t + 1 < lengths[i]:
                    continue
                if running[i]:
                    if not clear[i]:
                        choice = choose.again(t + 1, i, self._plain(ids[i, : t + 1]), mask)
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
            # exp needs the highest score of each row taken off only where scores are far from 0.
            if weights.max() > FAR or weights.min() < -FAR:
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


def _unit(x: Array) -> Array:
    """Vectors (…, n) at length 1, with the epsilon of `norm`."""
    return x / np.sqrt(np.vecdot(x, x, keepdims=True) + x.shape[-1] * EPS)
