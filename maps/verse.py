"""The shape of a poem: which line a character stands in, and at which place of it.

Everything here works on the tokens of a map: "\\n" first, then the text, one character each.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LINE_ENDS = frozenset("，。！？；：,.!?;:\n")  # a line of verse ends before any of these


def is_character(token: str) -> bool:
    """True for what a poem says: no punctuation, no space, no start of the text."""
    return unicodedata.category(token)[0] in "LNMS"


@dataclass(frozen=True)
class Verse:
    """Where each of T tokens stands; every array has shape (T,).

    A token that is no character (punctuation, the start) has place -1, and the line and length
    of the line that it ends; the start has line -1 and length 0.
    """

    codes: np.ndarray  # code point of the token
    character: np.ndarray  # bool: a character, not punctuation and not the start
    line: np.ndarray  # line of verse, from 0
    place: np.ndarray  # place in the line, from 0
    length: np.ndarray  # characters in the line

    @property
    def line_end(self) -> np.ndarray:
        """bool (T,): the last character of its line, where a rhyme stands."""
        return self.character & (self.place == self.length - 1)

    def stratum(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """A number for (length of the line, place in it, distance) of queries i that look at keys j; of
        queries that are no character for the distance alone."""
        return self.length[i] << 32 | self.place[i] << 16 | (i - j)


def read_verse(tokens: Sequence[str]) -> Verse:
    """The shape of one poem, from the tokens of its map (the first one is "\\n")."""
    size = len(tokens)
    character = np.array([is_character(token) for token in tokens], dtype=bool)
    line, place = np.full(size, -1), np.full(size, -1)
    length = np.zeros(size, dtype=int)
    number, members = 0, []
    for position in range(1, size):
        line[position] = number
        if character[position]:
            place[position] = len(members)
            members.append(position)
        if members and (tokens[position] in LINE_ENDS or position == size - 1):
            length[members[0] : position + 1] = len(members)
            number, members = number + 1, []
    codes = np.array([ord(token) for token in tokens])
    return Verse(codes, character, line, place, length)
