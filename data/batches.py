"""Batches of whole documents, and the order in which training meets them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.vocabulary import BOUNDARY, DataError, Vocabulary

IGNORE = -1  # the target of a padded place: not predicted, not counted


def padded(lengths: np.ndarray) -> np.ndarray:
    """The widths of the batches for texts of so many targets, the next of 1, 5, 9 … 65, 73, 81 … 129,
    145 …: steps of 4 up to 65, of 8 up to 129 and so on. A text of more than 22 gets an eighth more at
    most, a shorter one 3 places at most.

    Texts in whole couplets have such lengths up to 65, so poems of one form need no padding. Few widths
    are few sizes of tensors: oneDNN keeps a program for each, and malloc keeps room.
    """
    step = 2 ** np.maximum(2, np.log2(np.maximum(1, lengths - 1)).astype(int) - 3)
    return -(-(lengths - 1) // step) * step + 1


class Batches:
    """The batches of a set of documents.

    A document is read as "\\n" + text and predicts text + "\\n"; one longer than `block_size` is cut
    into windows. A batch holds documents of one width (see `padded`), at most `batch_size` places in
    all or a single document: regular poems need no padding, so no mask either, and every attention row
    is of one poem. Shorter rows are padded behind their end, where no character of theirs looks.

    Batches of each width are spread evenly over an epoch. Which batch a step gets depends on the seed
    and the step alone, so a training can go on anywhere.
    """

    def __init__(
        self, documents: Iterable[str], vocabulary: Vocabulary, block_size: int, batch_size: int
    ) -> None:
        documents = list(documents)
        if not documents:
            raise DataError("no documents to make batches of")
        text = BOUNDARY + BOUNDARY.join(documents) + BOUNDARY
        dtype = np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32
        self._ids = vocabulary.encode_array(text, dtype)
        starts, lengths, start = [], [], 0
        for document in documents:
            end = start + len(document) + 1  # where its last boundary stands, the next one's first
            # Windows share one character: the last target of one is the first input of the next.
            for i in range(start, end, block_size):
                starts.append(i)
                lengths.append(min(block_size, end - i))
            start = end
        # A row is where it starts in the ids and how many targets it has; the shortest come first.
        order = np.argsort(lengths, kind="stable")
        self._starts, self._lengths = np.array(starts)[order], np.array(lengths)[order]
        self._widths = padded(self._lengths)
        # Rows change places only with others of their width, so each batch keeps its own.
        self._same_width = _runs(self._widths)
        self._batches: list[np.ndarray] = []
        for run in self._same_width:
            width = self._lengths[run[-1]]  # none is wider than its longest text
            self._widths[run] = width
            n = max(1, batch_size // width)
            self._batches += [run[i : i + n] for i in range(0, len(run), n)]
        self._batches_of_width = _runs(self._widths[[batch[0] for batch in self._batches]])
        self._order = lru_cache(maxsize=1)(self._order)

    def __len__(self) -> int:
        """Batches in one epoch."""
        return len(self._batches)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Batch i in the fixed order that evaluation uses: inputs and targets, each (B, T) long."""
        return self._collate(self._batches[i])

    def shuffled(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step of shuffled epochs: each has all documents once, in its own order."""
        epoch, i = divmod(step, len(self))
        batches, rows = self._order(seed, epoch)
        return self._collate(rows[self._batches[batches[i]]])

    def _order(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((seed, epoch))
        rows = np.concatenate([rng.permutation(group) for group in self._same_width])
        place = np.empty(len(self))
        for batches in self._batches_of_width:
            steps = np.arange(len(batches)) + rng.random()
            place[rng.permutation(batches)] = steps / len(batches)
        return place.argsort(kind="stable"), rows

    def _collate(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        starts, lengths = self._starts[rows, None], self._lengths[rows, None]
        columns = np.arange(self._widths[rows[0]] + 1)
        ids = self._ids[np.minimum(starts + columns, len(self._ids) - 1)].astype(np.int64)
        is_padding = columns[:-1] >= lengths
        inputs = np.where(is_padding, 0, ids[:, :-1])
        targets = np.where(is_padding, IGNORE, ids[:, 1:])
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def _runs(values: np.ndarray) -> list[np.ndarray]:
    """The indices of each run of one value."""
    return np.split(np.arange(len(values)), np.flatnonzero(np.diff(values)) + 1)


class TrainingBatches:
    """What each step of a training reads: the documents together with `extra` ones, and in the last
    epoch the documents alone, so that what is learned last is of the kind that counts (annealing, as
    in arXiv:2407.21783 and arXiv:2406.03476). A training of an epoch or less never sees the extra
    ones.

    `steps` is the length of the whole training. Which batch a step gets depends on it, the seed and
    the step alone. `switch` is the first step without the extra documents, 0 where they are not read.
    """

    def __init__(
        self,
        documents: Sequence[str],
        extra: Sequence[str],
        vocabulary: Vocabulary,
        block_size: int,
        batch_size: int,
        steps: int,
    ) -> None:
        self._alone = Batches(documents, vocabulary, block_size, batch_size)
        self.switch = max(0, steps - len(self._alone)) if extra else 0
        if self.switch:
            self._together = Batches([*documents, *extra], vocabulary, block_size, batch_size)

    def batch(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, each (B, T) long."""
        if step < self.switch:
            return self._together.shuffled(seed, step)
        return self._alone.shuffled(seed, step - self.switch)
