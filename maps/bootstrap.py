"""Intervals by the bootstrap, with poems (not characters) as what is drawn."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """A value with the limits between which it lies with 95% confidence."""

    value: float
    low: float
    high: float


def cluster_sums(clusters: Sequence[Hashable], values: np.ndarray) -> np.ndarray:
    """Add up rows of values (P, …) that belong to one cluster: (number of clusters, …).

    The same poem judged in two trainings is one cluster: the two are not independent.
    """
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    sums = np.zeros((len(numbers), *values.shape[1:]))
    np.add.at(sums, np.array(row, dtype=int), values)
    return sums


def draws(clusters: int, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each cluster is drawn: (resamples, clusters), every row sums to `clusters`."""
    chances = np.full(clusters, 1 / clusters)
    return np.random.default_rng(seed).multinomial(clusters, chances, resamples).astype(float)


def limits(resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The percentile limits over the first axis; draws without a number are left out."""
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.nanpercentile(resampled, [tail, 100 - tail], axis=0)
    return low, high
