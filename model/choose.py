"""Choosing the next character from the model's probabilities, for many texts at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

CHUNK = 64  # columns whose random numbers are drawn at once
# Nats by which the winner must lead. Rounding moves a logit by less than a tenth of this.
LEAD = 1e-4

Array = np.ndarray


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
            enough[:, 0] = False  # also where top_p is zero in float32
            least = np.where(enough, np.inf, ordered).min(-1, keepdims=True)
            np.copyto(logits, 0, where=logits < least)


class Choosing:
    """Chooses the next character of each text, in the two steps of the output layer (model/gpt.py)
    where that is possible: first among the common ones and "a rare one", and all characters are
    looked at only where that one wins. Masks, top_k and top_p concern all of them.

    common (C, n + 1) and rare (C, V - n) or None are the output layer's weights. Text i draws from
    random numbers that `seed` and `numbers[i]` alone decide.
    """

    def __init__(
        self,
        common: Array,
        rare: Array | None,
        sampling: Sampling,
        seed: int,
        numbers: Sequence[int],
        masked: bool,
    ) -> None:
        self._common, self._rare, self._n = common, rare, common.shape[1] - 1
        self._greedy = sampling.greedy
        self._sharper = 1.0 if sampling.greedy else 1 / sampling.temperature
        V = common.shape[1] if rare is None else self._n + rare.shape[1]
        from_all = sampling.top_k == 0 and sampling.top_p == 1
        in_steps = rare is not None and not masked and (sampling.greedy or from_all)
        self._all = Choice(sampling, V, f"{seed} all", numbers, seldom=in_steps)
        self._first = None
        if in_steps:
            self._first = Choice(sampling, self._n + 1, f"{seed} first", numbers)
            self._uniform = Noise(f"{seed} uniform", numbers, 1, seldom=True)
            # Probabilities of R characters that sum to 1 sum to this at most at a higher
            # temperature, to 1 at a lower one (Hölder): in nats.
            self._most = max(0, (1 - self._sharper) * math.log(rare.shape[1]))

    def __call__(self, column: int, x: Array, mask: Array | None) -> tuple[Array, Array]:
        """The characters of all texts for a column, from what the output layer reads (B, C), and
        whether each is clear, whatever the rounding: both (B,)."""
        texts = np.arange(len(x))
        if self._first is None:
            logits = self._all.logits
            np.matmul(x * self._sharper, self._common, out=logits[:, : self._n + 1])
            if self._rare is not None:
                logits[:, self._n :] = self._which(x, logits[:, self._n, None].copy())
            return self._all(column, texts, mask)
        np.matmul(x * self._sharper, self._common, out=self._first.logits)
        return self._in_steps(
            column,
            texts,
            common=lambda rows: (x[rows] * self._sharper) @ self._common[:, : self._n],
            rare=lambda rows, a_rare_one: self._which(x[rows], a_rare_one),
        )

    def again(self, column: int, text: int, logits: Array, mask: Array | None) -> int:
        """The character of one text from other logits (V,) for the same place."""
        texts, logits = np.array([text]), logits[None] * self._sharper
        if self._first is None:
            self._all.logits[:1] = logits
            one = mask[texts] if mask is not None and mask.ndim == 2 else mask
            return int(self._all(column, texts, one)[0][0])
        common, rare = logits[:, : self._n], logits[:, self._n :]
        self._first.logits[:1, :-1] = common
        self._first.logits[:1, -1:] = _log_sum_exp(rare / self._sharper) * self._sharper
        chosen, _ = self._in_steps(column, texts, lambda rows: common, lambda rows, _: rare)
        return int(chosen[0])

    def _in_steps(
        self,
        column: int,
        texts: Array,
        common: Callable[[Array], Array],
        rare: Callable[[Array, Array], Array],
    ) -> tuple[Array, Array]:
        """Choose for texts (k,) whose logits of the first step are there; `common` and `rare` give
        more logits for some of them, the latter from that of "a rare one".

        At a temperature the rare ones' weights do not sum to that of "a rare one", but to a share of
        `_most` times it, which only they tell. So "a rare one" runs with that bound, and where it
        wins, the choice is among the rare ones with the probability of that share, and among all
        otherwise (rejection sampling). Greedily, the choice is among all.
        """
        last = self._first.logits[: len(texts), -1:]
        a_rare_one = last.copy()
        last += self._most
        chosen, clear = self._first(column, texts)
        rows = np.flatnonzero(chosen == self._n)
        if not rows.size:
            return chosen, clear
        logits = self._all.logits[: rows.size]
        logits[:, self._n :] = rare(rows, a_rare_one[rows])
        if self._greedy:
            among_all = np.arange(rows.size)
        else:
            share = np.exp(_log_sum_exp(logits[:, self._n :]) - a_rare_one[rows] - self._most)[:, 0]
            uniform = np.exp(-self._uniform(column, texts[rows])[:, 0])
            clear[rows] &= abs(uniform - share) > LEAD * max(1, self._sharper) * share
            logits[:, : self._n] = -np.inf
            among_all = np.flatnonzero(uniform >= share)
        if among_all.size:
            logits[among_all, : self._n] = common(rows[among_all])
        chosen[rows], clear_too = self._all(column, texts[rows])
        clear[rows] &= clear_too
        return chosen, clear

    def _which(self, x: Array, a_rare_one: Array) -> Array:
        """The logits of the rare ones over temperature (k, V - n), from x (k, C) and that of "a rare
        one" (k, 1)."""
        logits = x @ self._rare
        logits -= _log_sum_exp(logits)
        logits *= self._sharper
        logits += a_rare_one
        return logits


class Noise:
    """Exponential random numbers, `size` for each column of each text. Those of many columns are
    drawn at once, or where they are `seldom` asked for, those of the texts and column alone."""

    def __init__(self, seed: str, numbers: Sequence[int], size: int, seldom: bool = False) -> None:
        self._seed, self._numbers, self._size = seed, numbers, size
        self._columns, self._chunk = 1 if seldom else CHUNK, -1

    def __call__(self, column: int, texts: Array) -> Array:
        """Those of a column and some texts: (len(texts), size)."""
        chunk, place = divmod(column, self._columns)
        if self._columns == 1:
            return self._draw(chunk, texts)[:, 0]
        if chunk != self._chunk:
            self._chunk, self._drawn = chunk, self._draw(chunk, range(len(self._numbers)))
        return self._drawn[texts, place]

    def _draw(self, chunk: int, texts: Iterable[int]) -> Array:
        """Those of a chunk of columns: (len(texts), columns, size)."""
        drawn = []
        for text in texts:
            name = f"{self._seed} {self._numbers[text]} {chunk}"
            key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest())
            rng = np.random.default_rng(key)
            drawn.append(rng.standard_exponential((self._columns, self._size), np.float32))
        return np.maximum(drawn, np.float32(2**-25))


class Choice:
    """Chooses for each text one of V things from `logits` (B, V), which it spoils."""

    def __init__(
        self,
        sampling: Sampling,
        V: int,
        seed: str,
        numbers: Sequence[int],
        seldom: bool = False,
    ) -> None:
        self.sampling = sampling
        self._groups = math.isqrt(V - 1) + 1  # see `_draw`
        self._ones = np.ones(self._groups, np.float32)
        self._weights = np.zeros((len(numbers), self._groups**2), np.float32)
        self.logits = self._weights[:, :V]
        self._noise = Noise(seed, numbers, 2 * self._groups, seldom)

    def __call__(self, column: int, texts: Array, mask: Array | None = None) -> tuple[Array, Array]:
        """What these texts (n,), whose logits are the first n rows, get for a column, and whether
        each choice is clear, whatever the rounding: both (n,)."""
        n = len(texts)
        logits = self.logits[:n]
        if mask is not None:
            np.copyto(logits, -np.inf, where=~mask)
        if not self.sampling.greedy:
            self.sampling.weigh(logits)
            noise = self._noise(column, texts).reshape(n, 2, self._groups)
            return self._draw(self._weights[:n], noise)
        best, places = logits.argmax(-1), np.arange(n)
        least = logits[places, best] - LEAD
        logits[places, best] = -np.inf
        return best, logits.max(-1) < least

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
        least = math.exp(-LEAD * max(1, 1 / self.sampling.temperature))
        return place * G + group, _clear(first, least) & _clear(second, least)


def _clear(scores: Array, least: float) -> Array:
    """Whether the highest of each row of scores (B, N) times `least` is above all others: (B,)."""
    scores = np.partition(scores, -2)
    return scores[:, -2] < scores[:, -1] * least


def _log_sum_exp(x: Array) -> Array:
    """x (n, N) -> (n, 1)."""
    most = x.max(-1, keepdims=True)
    return most + np.log(np.exp(x - most) @ np.ones((x.shape[1], 1), x.dtype))
