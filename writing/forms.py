"""The shapes of regular verse: how many lines of how many characters, and what may stand where.

A form is kept by masking the model's choices, never by trying again: `FormMask` and `RhymeMask` say
which characters may come next (see `Allowed` in model/generate.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from data.vocabulary import BOUNDARY, DataError, Vocabulary
from writing.rhymes import Rhymes

COMMA, STOP = "，", "。"
# What a keyboard without Chinese input writes, and what the corpus has in its place.
FULL_WIDTH = str.maketrans(",.｡?!;:", "，。。？！；：")
Mask = Callable[[np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class Form:
    """A regular form: `lines` lines of `width` characters, closed by ， and 。 in turn."""

    name: str
    width: int
    lines: int

    @property
    def pattern(self) -> str:
        """The form's text with 字 for each character of verse."""
        couplet = "字" * self.width + COMMA + "字" * self.width + STOP
        return couplet * (self.lines // 2)


FORMS = {
    name: Form(name, width, lines)
    for name, width, lines in (("五绝", 5, 4), ("七绝", 7, 4), ("五律", 5, 8), ("七律", 7, 8))
}
PINYIN = {"wujue": "五绝", "qijue": "七绝", "wulü": "五律", "qilü": "七律"}
PINYIN |= {"wulv": "五律", "qilv": "七律", "wulu": "五律", "qilu": "七律"}


def find_form(name: str) -> Form:
    """The form of a name, Chinese or pinyin. Raises DataError."""
    name = unicodedata.normalize("NFC", name.strip())  # some systems hand over ü in two parts
    form = FORMS.get(PINYIN.get(name.lower(), name))
    if form is None:
        raise DataError(f"unknown form {name}: take 五绝, 七绝, 五律 or 七律 (or wujue, qijue, …)")
    return form


def acrostic_form(acrostic: str, form: Form | None) -> Form:
    """The form of an acrostic: a line for each character, five characters wide unless `form` says
    otherwise. Raises DataError where they do not fit."""
    if form is None:
        form = {4: FORMS["五绝"], 8: FORMS["五律"]}.get(len(acrostic))
    if form is None or len(acrostic) != form.lines:
        has = f"{form.name} has {form.lines} lines" if form else "poems have 4 or 8 lines"
        count = f"{len(acrostic)} character{'s' * (len(acrostic) != 1)}"
        raise DataError(f"the acrostic {acrostic} has {count}, but {has}")
    if not acrostic.isalpha():
        raise DataError(f"the acrostic {acrostic} has punctuation in it: no line begins with that")
    return form


def form_of(poem: str) -> Form | None:
    """The form that a poem has exactly, or None."""
    pattern = re.sub(r"[^\W\d_]", "字", poem)
    return next((form for form in FORMS.values() if form.pattern == pattern), None)


def full_width(text: str, vocabulary: Vocabulary) -> str:
    """`text` with half-width punctuation made full-width, and spaces left out, where the vocabulary
    does not have them."""
    return "".join(
        character if character in vocabulary else character.translate(FULL_WIDTH).strip()
        for character in text
    )


def require_marks(vocabulary: Vocabulary) -> None:
    """Raises DataError where a model has no punctuation of verse, as one of English text."""
    for mark in (COMMA, STOP):
        if mark not in vocabulary:
            raise DataError(f"the model knows no {mark}: forms and rhymes need Chinese poems")


class FormMask:
    """Which characters may come next so that the text takes a form, its lines beginning with the
    characters of `acrostic` where given. Raises DataError for what is impossible."""

    def __init__(self, form: Form, vocabulary: Vocabulary, acrostic: str = "") -> None:
        require_marks(vocabulary)
        self.form = form
        self._heads = dict(zip(range(0, 99, form.width + 1), acrostic, strict=False))
        of_verse = np.array([character.isalpha() for character in vocabulary.characters])
        self._masks = []
        for place, sign in enumerate(form.pattern + BOUNDARY):
            sign = self._heads.get(place, sign)
            mask = of_verse
            if place in self._heads or sign != "字":
                mask = np.zeros(len(vocabulary), bool)
                mask[vocabulary.encode(sign)] = True
            self._masks.append(mask)

    def check(self, prompt: str) -> None:
        """Raises DataError where a poem of this form cannot begin with `prompt`, saying why."""
        pattern = self.form.pattern
        if len(prompt) > len(pattern):
            raise DataError(f"the prompt has {len(prompt)} characters, {self.form.name} only "
                            f"{len(pattern)} with punctuation: shorten it")  # fmt: skip
        for place, (character, sign) in enumerate(zip(prompt, pattern, strict=False)):
            wanted = self._heads.get(place, sign)
            if wanted != character and (place in self._heads or wanted != "字"):
                raise DataError(f"character {place + 1} of the prompt is {character}, but with this "
                                f"form or acrostic {wanted} stands there")  # fmt: skip
            if sign == "字" and not character.isalpha():
                raise DataError(f"character {place + 1} of the prompt is {character}, but a line of "
                                f"{self.form.name} has {self.form.width} characters")  # fmt: skip

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Ids of texts (B, T), "\\n" first -> bool (V,)."""
        return self._masks[min(ids.shape[1] - 1, len(self._masks) - 1)]


class RhymeMask:
    """Which characters may come next so that even lines rhyme with the second one, none twice. The
    width of the lines is that of a text's first one, so any form will do, kept by a mask or not. Raises
    DataError where no rhyme has enough characters."""

    def __init__(self, rhymes: Rhymes, vocabulary: Vocabulary) -> None:
        require_marks(vocabulary)
        [self._comma] = vocabulary.encode(COMMA)
        self._groups = np.array([rhymes.group(c) for c in vocabulary.characters])
        sizes = np.bincount(self._groups + 1)[self._groups + 1]
        # The second line may end in any character with enough others to rhyme with.
        self._opening = (self._groups >= 0) & (sizes >= rhymes.ENOUGH)
        if not self._opening.any():
            raise DataError("too few training poems to learn rhymes from: leave out --rhyme")

    def _row(self, text: list[int]) -> np.ndarray | None:
        width = text.index(self._comma) if self._comma in text else 0
        line, place = divmod(len(text), width + 1)
        if not width or place != width - 1 or line % 2 == 0:
            return None
        if line == 1:
            return self._opening
        ends = [text[number * (width + 1) + width - 1] for number in range(1, line, 2)]
        mask = self._groups == self._groups[ends[0]]
        mask[ends] = False
        return mask if self._groups[ends[0]] >= 0 and mask.any() else None

    def __call__(self, ids: np.ndarray) -> np.ndarray | None:
        """Ids of texts (B, T), "\\n" first -> bool (B, V), or None where no line ends."""
        masks = [self._row(text) for text in ids[:, 1:].tolist()]
        if all(mask is None for mask in masks):
            return None
        anything = np.ones(len(self._groups), bool)
        return np.stack([anything if mask is None else mask for mask in masks])


def both(masks: Sequence[Mask]) -> Mask | None:
    """What all masks allow."""

    def allowed(ids: np.ndarray) -> np.ndarray | None:
        found = [mask for mask in (mask(ids) for mask in masks) if mask is not None]
        return reduce(np.logical_and, found) if found else None

    return allowed if masks else None
