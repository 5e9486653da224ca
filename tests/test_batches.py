"""Batches: every poem once an epoch, none read across its border, in an order that is given."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from data.batches import IGNORE, Batches, TrainingBatches, padded
from data.corpus import POEMS, Corpus, read_documents
from data.vocabulary import DataError, Vocabulary

MIXED = ["床前明月光", "疑是", "地上霜举头望明月低头思故乡", "月", "明月光床前", "光光", "霜" * 23]


def batches(documents, block_size=8, batch_size=24) -> Batches:
    return Batches(documents, Vocabulary.of(documents), block_size, batch_size)


def read(vocabulary: Vocabulary, idx: torch.Tensor, targets: torch.Tensor):
    """What each row reads and what it shall predict, without padding."""
    for row, target in zip(idx, targets, strict=True):
        n = int((target != IGNORE).sum())
        assert (target[n:] == IGNORE).all()  # padding stands behind, never before
        yield vocabulary.decode(row[:n].tolist()), vocabulary.decode(target[:n].tolist())


def windows(document: str, block_size: int) -> list[tuple[str, str]]:
    """The same by slicing strings: windows of block_size inputs, targets one further."""
    text = "\n" + document + "\n"
    return [
        (text[i : i + block_size][: len(text) - 1 - i], text[i + 1 : i + 1 + block_size])
        for i in range(0, len(text) - 1, block_size)
    ]


@pytest.mark.parametrize("block_size", [1, 3, 8, 100])
def test_all_of_every_document_once_in_both_orders(block_size):
    vocabulary, these = Vocabulary.of(MIXED), batches(MIXED, block_size)
    expected = Counter(pair for document in MIXED for pair in windows(document, block_size))
    fixed = Counter(p for i in range(len(these)) for p in read(vocabulary, *these[i]))
    assert fixed == expected
    for epoch in (0, 1, 5):
        steps = range(epoch * len(these), (epoch + 1) * len(these))
        assert expected == Counter(
            p for step in steps for p in read(vocabulary, *these.shuffled(7, step))
        )


def test_regular_poems_need_no_padding_and_fill_their_batches():
    corpus = Corpus(read_documents(POEMS)[::20])
    these = Batches(corpus.train, corpus.vocabulary, 65, 1536)
    for step in range(len(these)):
        idx, targets = these.shuffled(0, step)
        assert (targets != IGNORE).all() and idx.size(1) in (25, 33, 49, 65)
        assert idx.numel() <= 1536
    sizes = [these[i][0].numel() for i in range(len(these))]
    assert np.mean(sizes) > 1300


def test_widths():
    widths = padded(np.arange(1, 2000))
    assert sorted(set(widths[:150])) == [*range(1, 65, 4), *range(65, 129, 8), *range(129, 162, 16)]
    for length, width in enumerate(widths.tolist(), start=1):
        assert 0 <= width - length <= (3 if length <= 32 else length / 8)
    assert padded(np.array([25, 33, 49, 65, 13, 37])).tolist() == [25, 33, 49, 65, 13, 37]


def test_a_batch_is_of_one_width_and_full_but_for_the_last_of_its_width():
    documents = ["月" * n for n in range(1, 80) for _ in range(n % 7)]
    these = batches(documents, block_size=62, batch_size=200)
    shapes = [tuple(these[i][0].shape) for i in range(len(these))]
    pairs = [pair for document in documents for pair in windows(document, 62)]
    longest = {}  # of the texts with one `padded`
    for length in sorted(len(inputs) for inputs, _ in pairs):
        longest[int(padded(np.array(length)))] = length
    for i, (rows, width) in enumerate(shapes):
        lengths = (these[i][1] != IGNORE).sum(-1).numpy()
        assert [longest[n] for n in set(padded(lengths).tolist())] == [width]
        assert rows * width <= 200
        if (i + 1 < len(shapes)) and shapes[i + 1][1] == width:
            assert (rows + 1) * width > 200


def test_the_order_depends_on_seed_and_step_alone():
    documents = [chr(0x4E00 + n) * (5 + n % 2) for n in range(200)]
    a, b = batches(documents), batches(documents)
    far = [b.shuffled(3, step) for step in (250, 3, 120, 3)]  # asked for in another order
    for (idx, targets), step in zip(far, (250, 3, 120, 3), strict=True):
        again = a.shuffled(3, step)
        assert torch.equal(idx, again[0]) and torch.equal(targets, again[1])
    epochs = [[a.shuffled(3, e * len(a) + i)[0] for i in range(len(a))] for e in (0, 1)]
    other_seed = [a.shuffled(4, i)[0] for i in range(len(a))]
    for order in (epochs[1], other_seed):
        assert not all(torch.equal(x, y) for x, y in zip(epochs[0], order, strict=True))
    # Not only the batches change places: poems meet others of their width, also of other lengths.
    first, second = ({frozenset(x[:, 1].tolist()) for x in epoch} for epoch in epochs)
    assert first != second
    lengths = [(a.shuffled(3, i)[1] != IGNORE).sum(-1) for i in range(len(a))]
    assert sum(len(set(n.tolist())) > 1 for n in lengths) > len(a) / 2


def test_batches_of_each_width_are_spread_over_an_epoch():
    lengths = [4] * 700 + [8] * 90 + [12] * 200 + [16]
    these = batches([chr(0x4E00 + i) * n for i, n in enumerate(lengths)], 32, 36)
    order = [these.shuffled(0, step)[0].size(1) for step in range(len(these))]
    total, N, G = Counter(order), len(order), len(set(lengths))
    assert set(total) == {n + 1 for n in lengths}
    for length, n in total.items():
        for k in range(N):
            # The batches of a width stand at even distances, each width from a start of its own.
            assert abs(order[:k].count(length) - k * n / N) <= 1 + G * n / N


def test_two_widths_with_as_many_batches_take_turns_whatever_lengths_they_hold():
    lengths = [1 + n % 4 for n in range(700)] + [5 + n % 4 for n in range(400)]
    these = batches([chr(0x4E00 + i) * n for i, n in enumerate(lengths)], 32, 36)
    order = [these.shuffled(0, step)[0].size(1) for step in range(len(these))]
    assert Counter(order) == {5: 100, 9: 100}
    assert all(a != b for a, b in pairwise(order))


def test_ids_beyond_16_bits_are_kept():
    documents = ["".join(chr(0x10000 + n) for n in range(66_000)), "\U0001f319"]
    vocabulary, these = Vocabulary.of(documents), batches(documents, 70_000, 70_000)
    assert len(vocabulary) > 1 << 16
    pairs = [p for i in range(len(these)) for p in read(vocabulary, *these[i])]
    assert Counter(pairs) == Counter(w for d in documents for w in windows(d, 70_000))


def test_nothing_to_make_batches_of():
    with pytest.raises(DataError):
        Batches([], Vocabulary("\n月"), 8, 24)


# With extra documents


def seen(these: TrainingBatches, vocabulary: Vocabulary, steps) -> Counter:
    return Counter(
        inputs for step in steps for inputs, _ in read(vocabulary, *these.batch(7, step))
    )


def test_extra_documents_are_read_too_until_the_last_epoch():
    extra = ["光明月前床", "月月月月"]
    vocabulary = Vocabulary.of(MIXED)
    alone = Batches(MIXED, vocabulary, 8, 24)
    whole = Batches(MIXED + extra, vocabulary, 8, 24)
    steps = 2 * len(whole) + len(alone)
    these = TrainingBatches(MIXED, extra, vocabulary, 8, 24, steps)
    of_documents = Counter(pair[0] for d in MIXED for pair in windows(d, 8))
    of_extra = Counter(pair[0] for d in extra for pair in windows(d, 8))
    for epoch in range(2):
        some = range(epoch * len(whole), (epoch + 1) * len(whole))
        assert seen(these, vocabulary, some) == of_documents + of_extra
    assert seen(these, vocabulary, range(2 * len(whole), steps)) == of_documents


@pytest.mark.parametrize(("extra", "shorter"), [(["光明月前床"], 0), (["光明月前床"], 3), ([], -3)])
def test_a_short_training_reads_its_documents_alone(extra, shorter):
    vocabulary = Vocabulary.of(MIXED)
    alone = Batches(MIXED, vocabulary, 8, 24)
    these = TrainingBatches(MIXED, extra, vocabulary, 8, 24, len(alone) - shorter)
    for step in range(2 * len(alone)):
        for one, other in zip(these.batch(3, step), alone.shuffled(3, step), strict=True):
            assert torch.equal(one, other)
