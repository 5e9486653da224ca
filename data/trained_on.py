"""The corpus that a checkpoint was trained on."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from data.corpus import Corpus, read_documents
from data.vocabulary import DataError

ROOT = Path(__file__).parent.parent


def corpus_of(state: dict[str, Any]) -> Corpus:
    """The documents of a checkpoint's state, parted as its training did. Raises DataError where
    they are gone or are no longer the same."""
    settings = state["config"]
    path = Path(settings["data"])
    documents = read_documents(path if path.exists() else ROOT / path)
    if sha256("\n".join(documents).encode()).hexdigest() != state["data_sha256"]:
        raise DataError(f"{path} is no longer the text that the model was trained on: train anew")
    return Corpus(documents, settings["fold"], settings["probes"])
