"""What counting alone predicts: the losses that attention has to beat."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from data.vocabulary import BOUNDARY, Vocabulary


def _ids(documents: Iterable[str], vocabulary: Vocabulary) -> np.ndarray:
    """All documents in one row, a boundary between them and at both ends."""
    return vocabulary.encode_array(BOUNDARY + BOUNDARY.join(documents) + BOUNDARY)


def _pairs(ids: np.ndarray, V: int) -> np.ndarray:
    """Each character with the one behind it as one number, in as few bytes as will do."""
    dtype = np.uint32 if V <= 1 << 16 else np.uint64
    return ids[:-1].astype(dtype) * dtype(V) + ids[1:].astype(dtype)


def unigram_and_bigram(
    train: Iterable[str], val: Iterable[str], vocabulary: Vocabulary
) -> tuple[float, float]:
    """Held-out nats a character, document ends included, of two counting models.

    Unigram: how often each character stands in `train`, plus one. Bigram: how often it follows the
    one before, interpolated with the unigram by Witten and Bell's weight (1991): a context seen n
    times with k different followers trusts its counts by n / (n + k).
    """
    V = len(vocabulary)
    seen, unseen = _ids(train, vocabulary), _ids(val, vocabulary)
    unigram = (np.bincount(seen[1:], minlength=V) + 1.0) / (len(seen) - 1 + V)
    pairs, counts = np.unique(_pairs(seen, V), return_counts=True)
    n = np.bincount(pairs // V, counts, minlength=V)
    k = np.bincount(pairs // V, minlength=V)
    asked = _pairs(unseen, V)
    at = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    count = np.where(pairs[at] == asked, counts[at], 0)
    context, following = unseen[:-1], unseen[1:]
    prior = unigram[following]
    total = n[context] + k[context]
    bigram = np.where(total > 0, (count + k[context] * prior) / np.maximum(total, 1), prior)
    return float(-np.log(prior).mean()), float(-np.log(bigram).mean())
