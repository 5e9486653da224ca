"""The corpus that a checkpoint was trained on."""

from __future__ import annotations

from typing import Any

from data.corpus import Corpus, read_texts
from data.vocabulary import DataError


def corpus_of(state: dict[str, Any]) -> Corpus:
    """The documents of a checkpoint's state, parted as its training did. Raises DataError where
    they are gone or are no longer the same."""
    settings = state["config"]
    documents, extra, digest = read_texts(settings["data"], settings["extra_data"])
    if digest != state["data_sha256"]:
        names = " or ".join(filter(None, (settings["data"], settings["extra_data"])))
        raise DataError(f"{names} is no longer the text that the model was trained on: train anew")
    return Corpus(documents, settings["fold"], settings["probes"], extra)
