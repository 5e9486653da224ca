"""Documents from a text file, and which of them the model never sees."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from data.vocabulary import DataError, Vocabulary

ROOT = Path(__file__).parent.parent
POEMS = Path(__file__).with_name("poems.txt")
EXTRA_POEMS = Path(__file__).with_name("extra_poems.txt")
ALL_POEMS = Path(__file__).with_name("poems_all.txt")  # made by `python -m data.prepare --all`
FOLDS = 10
LONG = 8  # characters of a probe that stand in another document by no accident


def read_documents(path: str | Path) -> list[str]:
    """The non-empty lines of a UTF-8 text file, without a byte order mark or carriage returns.

    Raises DataError where the file is missing, not UTF-8 or has no text.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8 and try again"
        ) from None
    except OSError as error:
        advice = "name a text file"
        if path.name == ALL_POEMS.name:
            advice = "make it by `python -m data.prepare --all`"
        raise DataError(f"cannot read {path}: {error.strerror}; {advice}") from None
    if "\0" in text:
        raise DataError(f"{path} is not text (it has NUL characters): name a UTF-8 text file")
    # Only line feeds part documents: str.splitlines would also cut at form feeds and the like.
    lines = text.replace("\r", "\n").split("\n")
    documents = [line.rstrip() for line in lines if line.strip()]
    if not documents:
        raise DataError(f"{path} is empty: give a text with one document a line")
    return documents


def read_texts(data: str, extra_data: str = "") -> tuple[list[str], list[str], str]:
    """The documents of a text and of the one that is only trained on (none where it has no name), and a
    digest of both. A path that does not exist is taken from the project's folder."""
    paths = [Path(name) for name in (data, extra_data) if name]
    texts = [read_documents(path if path.exists() else ROOT / path) for path in paths]
    # No document has a NUL: it tells where the first text ends.
    digest = sha256("\0".join(map("\n".join, texts)).encode()).hexdigest()
    return texts[0], texts[1] if extra_data else [], digest


def opening(document: str) -> str:
    """A document's first sentence, which for a regular poem is its first couplet: documents that
    share it are versions of one poem."""
    return document.partition("。")[0]


def verse_lines(text: str) -> set[str]:
    """The lines of Chinese verse in a text: its runs of four or more characters between
    punctuation. In other scripts such a run is a word, which tells nothing."""
    return set(re.findall("[㐀-䶿一-鿿豈-﫿𠀀-𳿿]{4,}", text))


class Corpus:
    """Documents with their vocabulary, parted into training and held-out ones.

    A document goes wholly to one side by a hash of its opening, so neither order nor other
    documents matter; `fold` (0 to 9) says which tenth is held out. A document that shares a line of
    verse with one of the `probes`, or holds all of a longer one, is always held out: the maps shown are
    of unseen poems.

    `extra` documents are only trained on and are none of the text that is judged: those with a
    character outside the vocabulary are left out, and those that share the opening or a line of verse
    with a held-out document or a probe.
    """

    def __init__(
        self,
        documents: Iterable[str],
        fold: int = 0,
        probes: Iterable[str] = (),
        extra: Iterable[str] = (),
    ) -> None:
        self.documents = list(documents)
        self.vocabulary = Vocabulary.of(self.documents)
        self.train: list[str] = []
        self.val: list[str] = []
        probes = tuple(probes)
        long_probes = [probe for probe in probes if len(probe) >= LONG]
        probe_lines = set().union(*map(verse_lines, probes))
        probe_openings = {line[:1] for line in probe_lines}

        def has_probe(document: str) -> bool:
            return any(probe in document for probe in long_probes)

        for document in self.documents:
            digest = sha256(opening(document).encode()).digest()
            held_out = int.from_bytes(digest[:8], "big") % FOLDS == fold
            if not held_out and probe_openings.intersection(document):
                held_out = not probe_lines.isdisjoint(verse_lines(document))
            held_out = held_out or has_probe(document)
            (self.val if held_out else self.train).append(document)
        if not self.train or not self.val:
            side = "train on" if not self.train else "hold out"
            raise DataError(
                f"too few documents ({len(self.documents)}) to {side}: give a text with more lines, "
                "or another fold"
            )
        hidden_openings = {opening(document) for document in self.val}
        hidden_lines = probe_lines.union(*map(verse_lines, self.val))
        known = set(self.vocabulary.characters)
        self.extra = [
            document
            for document in extra
            if known.issuperset(document)
            and opening(document) not in hidden_openings
            and hidden_lines.isdisjoint(verse_lines(document))
            and not has_probe(document)
        ]

    @property
    def seen(self) -> list[str]:
        """All that a training of more than an epoch reads."""
        return [*self.train, *self.extra]


def corpus_of(state: dict[str, Any]) -> Corpus:
    """The documents of a checkpoint's state, parted as its training did. Raises DataError where
    they are gone or are no longer the same."""
    settings = state["config"]
    documents, extra, digest = read_texts(settings["data"], settings["extra_data"])
    if digest != state["data_sha256"]:
        names = " or ".join(filter(None, (settings["data"], settings["extra_data"])))
        raise DataError(f"{names} is no longer the text that the model was trained on: train anew")
    return Corpus(documents, settings["fold"], settings["probes"], extra)
