"""The statistic on made-up maps whose answer is known."""

import numpy as np
import pytest

from maps.evidence import (
    OCCURRENCE,
    Pair,
    choose_head,
    contains_pair,
    expected_weights,
    find_cells,
    head_lifts,
    pair_sums,
    sum_by_poem,
)
from maps.verse import read_verse

PAIR = Pair("光", "月")
OTHERS = [chr(ord("一") + n) for n in range(40)]


def made_up_poems(number, seed=0, lines=4, length=5):
    """Regular poems of random characters, in which 光 and 月 are frequent."""
    random = np.random.default_rng(seed)
    alphabet = [*OTHERS, *"光光光月月月"]
    poems = []
    for _ in range(number):
        verses = ["".join(random.choice(alphabet, length)) for _ in range(lines)]
        poems.append("".join(v + "，。"[at % 2] for at, v in enumerate(verses)))
    return poems


def made_up_maps(poems, heads):
    """Maps (1, number of heads, 1, T, T): head(codes, i, j) -> (T, T) says how many hundredths a
    cell gets; the start of the text takes what remains of the row, as it does in real heads."""
    for index, poem in enumerate(poems):
        codes = np.array([ord(c) for c in "\n" + poem])
        i, j = np.indices((len(codes), len(codes)))
        weights = np.array([np.tril(head(codes, i, j)) / 100 for head in heads])
        weights[:, :, 0] = 0
        weights[:, :, 0] = 1 - weights.sum(-1)
        assert (weights >= 0).all()
        yield [index], weights[None, :, None]


def flat(codes, i, j):
    return np.ones(i.shape)


def planted(codes, i, j):
    """The query 光 gives 月 five times what it gives any other character."""
    return np.where((codes[i] == ord("光")) & (codes[j] == ord("月")), 5.0, 1.0)


def liked_by_all(codes, i, j):
    return np.where(codes[j] == ord("月"), 5.0, 1.0)


def positional(codes, i, j):
    """Looks at the same place of the line before, whatever stands there."""
    return np.where(i - j == 6, 50.0, 1.0)


def sums_of(poems, *heads):
    (sums,) = pair_sums(poems, made_up_maps(poems, heads), [PAIR])
    return sums


def test_planted_head_has_its_lift_in_both_questions():
    (lift,) = head_lifts(sums_of(made_up_poems(200), planted))
    assert lift.lift1 == pytest.approx((5, 5, 5))
    assert lift.lift2 == pytest.approx((5, 5, 5))
    assert lift.weight == pytest.approx(0.05)


def test_flat_and_positional_heads_have_lift_one():
    for lift in head_lifts(sums_of(made_up_poems(200), flat, positional)):
        assert lift.lift1 == pytest.approx((1, 1, 1))
        assert lift.lift2 == pytest.approx((1, 1, 1))


def test_a_key_that_everyone_likes_has_the_first_lift_alone():
    (lift,) = head_lifts(sums_of(made_up_poems(200), liked_by_all))
    assert lift.lift1 == pytest.approx((5, 5, 5))
    assert lift.lift2 == pytest.approx((1, 1, 1))


def test_the_planted_head_is_chosen():
    sums = sums_of(made_up_poems(200), flat, positional, liked_by_all, planted)
    assert choose_head(sums) == (0, 3)


def test_cells_keep_the_distance_and_leave_punctuation_out():
    verse = read_verse("\n月光月一二，光三四五六。")
    cells = find_cells([verse, *map(read_verse, ("\n" + p for p in made_up_poems(20)))], PAIR)
    mine = cells.poem == 0
    pairs = mine & (cells.kind == OCCURRENCE)
    found = list(zip(cells.query[pairs], cells.key[pairs], strict=True))
    assert found == [(7, 1), (7, 3)]  # not 光 at 2 beside 月 at 1
    assert (cells.query - cells.key >= 2).all()
    assert verse.character[cells.query[mine]].all() and verse.character[cells.key[mine]].all()


def test_the_baseline_stands_where_the_occurrences_stand():
    """A weight that depends on the distance alone is expected as it is, over all poems."""
    verses = [read_verse("\n" + poem) for poem in made_up_poems(100)]
    cells = find_cells(verses, PAIR)
    pair = cells.kind == OCCURRENCE
    for power in (1, 2, 3):
        values = (cells.distance.astype(float) ** power)[:, None, None]
        for kind in (1, 2):
            expected = expected_weights(cells, values, kind)
            assert expected.sum() == pytest.approx(values[pair].sum())


def test_too_few_poems_give_no_number():
    poems = ["月一二三光，四五六七八。"] * 3
    (lift,) = head_lifts(sums_of(poems, flat))
    assert lift.lift1 is None and lift.lift2 is None
    (none,) = head_lifts(sums_of(["一二三四五，六七八九十。"], flat))
    assert none.lift1 is None and np.isnan(none.weight)


@pytest.mark.parametrize(("pairs", "least"), [(30, 0.9), (150, 0.92)])
def test_the_interval_covers_the_truth(pairs, least):
    """500 simulated heads with a lift of 4, each poem with a temper of its own."""
    poems = made_up_poems(2000, seed=1)
    poems = sorted(poems, key=lambda poem: not contains_pair(poem, PAIR))[: 200 + pairs]
    poems = [p for at, p in enumerate(poems) if at < pairs or not contains_pair(p, PAIR)]
    cells = find_cells([read_verse("\n" + poem) for poem in poems], PAIR)
    random = np.random.default_rng(0)
    temper = random.gamma(4, 1 / 4, (len(poems), 500))[cells.poem]
    noise = random.gamma(2, 1 / 2, temper.shape)
    lift = np.where(cells.kind == OCCURRENCE, 4, 1)
    values = (lift / (cells.distance + 2))[:, None] * temper * noise
    sums = sum_by_poem(PAIR, poems, cells, values[..., None], np.zeros((*values.shape, 1)))
    lifts = head_lifts(sums)
    for name in ("lift1", "lift2"):
        low, high = np.array([getattr(lift, name)[1:] for lift in lifts]).T
        assert least <= np.mean((low < 4) & (high > 4)) <= 0.98
        assert np.mean(low > 4) < 0.05  # what is claimed is the lower limit
