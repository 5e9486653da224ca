"""How much of a poem stands in the poems that the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Novelty:
    """`run`: the longest run of characters shared with a training poem, punctuation apart; `source`:
    that poem; both empty where not even two characters are shared. `share`: of the poem's runs of
    five characters, how many stand in training poems (0 to 1; 0 for a poem of fewer characters)."""

    run: str
    source: str
    share: float


class NoveltyIndex:
    """Finds runs of characters in a set of poems: all places of a pair of characters lie together,
    and from them a run is followed as far as it goes."""

    RUN = 5  # characters of a run whose share is counted: a line of the shorter forms

    def __init__(self, poems: Sequence[str]) -> None:
        self._poems = list(poems)
        codes = _codes("\n" + "\n".join(self._poems) + "\n" * 2)
        # Line feeds stay, so that no run goes from one poem into the next.
        self._text = codes[_is_letter(codes) | (codes == ord("\n"))]
        self._poem = np.cumsum(self._text == ord("\n")) - 1  # the number of a place's poem
        pairs = self._text[:-1] << 32 | self._text[1:]
        self._places = np.argsort(pairs)
        self._pairs = pairs[self._places]

    def measure(self, poem: str) -> Novelty:
        """Compare one poem with all of the index."""
        codes = _codes(poem)
        asked = codes[_is_letter(codes)]
        length, runs = len(asked), len(asked) - self.RUN + 1
        # Pairs of places (in the poem, in the index) from which the same `n` characters follow.
        n, shared = 2, 0
        pairs = asked[:-1] << 32 | asked[1:]
        low = np.searchsorted(self._pairs, pairs, "left")
        counts = np.searchsorted(self._pairs, pairs, "right") - low
        here = np.repeat(np.arange(len(pairs)), counts)
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        there = self._places[np.repeat(low, counts) + steps]
        best = (0, 0, 0)
        while len(here):
            best = (n, here[0], there[0])
            if n == self.RUN:
                shared = len(np.unique(here))
            on = here + n < length
            here, there = here[on], there[on]
            same = asked[here + n] == self._text[there + n]
            here, there, n = here[same], there[same], n + 1
        size, start, place = best
        run = "".join(map(chr, asked[start : start + size]))
        source = self._poems[self._poem[place]] if size else ""
        return Novelty(run, source, shared / max(runs, 1))


def _codes(text: str) -> np.ndarray:
    """The code points of a text, int64."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


def _is_letter(codes: np.ndarray) -> np.ndarray:
    """Which code points are letters (Chinese characters are), bool."""
    kinds, places = np.unique(codes, return_inverse=True)
    return np.array([chr(code).isalpha() for code in kinds], bool)[places]
