"""Characters and their numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

BOUNDARY = "\n"  # starts and ends each document: id 0, and the only character that is not text
PIECE = 1 << 16  # characters that are encoded at once, of a long text
VARIANTS = Path(__file__).with_name("variants.json")


class DataError(ValueError):
    """A text or a file that cannot be used; the message says what is wrong and what to do."""


class UnknownCharacterError(DataError):
    """A character that the vocabulary does not have."""


@cache
def variants() -> dict[str, str]:
    """Traditional and variant forms -> the form that the corpus uses, as made by data.prepare."""
    return json.loads(VARIANTS.read_text(encoding="utf-8"))


class Vocabulary:
    """An ordered set of characters; a character's id is its place. The first one is "\\n"."""

    def __init__(self, characters: Sequence[str]) -> None:
        if not characters or characters[0] != BOUNDARY:
            raise DataError("a vocabulary starts with the line feed that bounds each document")
        self.characters = tuple(characters)
        self._ids = {character: i for i, character in enumerate(self.characters)}
        if len(self._ids) != len(self.characters):
            raise DataError("a vocabulary holds each character once")

    @classmethod
    def of(cls, documents: Iterable[str]) -> Vocabulary:
        """All characters of the documents, the commonest first, equally common ones by code point."""
        count = Counter()
        for document in documents:
            count.update(document)
        del count[BOUNDARY]
        return cls([BOUNDARY, *sorted(count, key=lambda character: (-count[character], character))])

    def __len__(self) -> int:
        return len(self.characters)

    def __contains__(self, character: str) -> bool:
        return character in self._ids

    def encode(self, text: str) -> list[int]:
        """The ids of a text's characters. Raises UnknownCharacterError for the first one that is
        not in the vocabulary, with the form that is where a traditional or variant form was used."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise UnknownCharacterError(self._explain(text, error.args[0])) from None

    def encode_array(self, text: str, dtype: type[np.integer] = np.int32) -> np.ndarray:
        """`encode` for a whole corpus: a hundred times as fast, ids (len(text),) in `dtype`."""
        table = np.full(0x110000, -1, np.int32)  # code point -> id
        table[[ord(character) for character in self.characters]] = range(len(self))
        found = np.empty(len(text), dtype)
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            ids = table[np.frombuffer(piece.encode("utf-32-le"), "<u4")]
            if ids.min() < 0:
                self.encode(text)  # says which one is unknown
            found[start : start + PIECE] = ids
        return found

    def _explain(self, text: str, character: str) -> str:
        shown = character if character.isprintable() else "an invisible character"
        # People count from the first one shown.
        number = text.removeprefix(BOUNDARY).index(character) + 1
        where = f"{shown} (U+{ord(character):04X}), character {number} of the text"
        known = variants().get(character)
        if known in self._ids:
            return f"the model does not know {where}; it writes {known}: use that instead"
        return f"the model does not know {where}: it is not in the corpus; use another one"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids. Raises IndexError for an id outside the vocabulary."""
        return "".join(self.characters[i] for i in ids)
