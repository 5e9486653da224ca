"""Which characters rhyme, learned from the poems: the sounds of the Tang are gone from today's
speech, but the poets' line ends still say which ones went together."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np


def rhyme_words(poem: str) -> list[str]:
    """The last characters of a poem's even lines: in regular verse these rhyme."""
    return re.findall(r"[^\W\d_](?=[^\w\s]|$)", poem)[1::2]


class Rhymes:
    """Rhyme groups, found as communities among characters that end even lines of the same poems.

    Two characters are tied by as many ties as poems in which both rhyme. Each character in turn
    moves to the group that raises the modularity most, that is, the ties within groups beyond what
    chance would put there, until none moves (the first phase of Louvain's method, arXiv:0803.0476).
    """

    ENOUGH = 16  # characters of a group, to find the rhyme words of a poem in it

    def __init__(self, poems: Iterable[str]) -> None:
        words = [list(dict.fromkeys(rhyme_words(poem))) for poem in poems]
        ids = {word: i for i, word in enumerate(sorted(set().union(*words)))}
        ties = np.zeros((len(ids), len(ids)), np.float32)
        for poem in words:
            places = [ids[word] for word in poem]
            for i in places:
                ties[i, places] += 1
        np.fill_diagonal(ties, 0)
        degree = ties.sum(1, dtype=np.float64)
        total = max(degree.sum(), 1)
        group, weight = np.arange(len(ids)), degree.copy()
        tied, moved = [i for i in np.argsort(-degree, kind="stable") if degree[i]], True
        while moved:
            moved = False
            for i in tied:
                weight[group[i]] -= degree[i]
                gain = np.bincount(group, ties[i], len(ids)) - degree[i] * weight / total
                best = gain.argmax()
                if gain[best] > gain[group[i]] + 1e-6:  # moves that gain nothing would never end
                    group[i], moved = best, True
                weight[group[i]] += degree[i]
        self._group = {word: int(group[i]) for word, i in ids.items() if degree[i]}

    def group(self, character: str) -> int:
        """The number of a character's rhyme group, -1 where the poems do not tell."""
        return self._group.get(character, -1)

    def rhymed(self, poem: str) -> bool:
        """Whether all even lines of a poem end in one rhyme group."""
        groups = {self.group(word) for word in rhyme_words(poem)}
        return len(groups) == 1 and -1 not in groups
