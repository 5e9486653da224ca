"""The statistic on made-up maps whose answer is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.vocabulary import Vocabulary
from maps.bootstrap import Interval, plain, shown
from maps.evidence import (
    OCCURRENCE,
    Pair,
    choose_head,
    choose_poems,
    contains_pair,
    count_pairs,
    expected_weights,
    find_cells,
    head_lifts,
    pair_evidence,
    pair_sums,
    pool,
    sum_by_poem,
)
from maps.report import evidence_dict, format_evidence, gather_evidence, pool_evidence, questions
from maps.verse import read_verse
from model.gpt import GPT, GPTConfig

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


def test_few_cells_far_apart_are_counted():
    poems = [first + "、" * 30 + last for first, last in ("月光", "月一", "一光")]
    poems += [first + "、" * 40 + last for first, last in ("月一", "一光")]
    cells = find_cells([read_verse("\n" + poem) for poem in poems], PAIR)
    assert cells.distance.tolist() == [31, 31, 31, 41, 41]  # more than there are cells
    for kind in (1, 2):
        expected = expected_weights(cells, np.ones((5, 1, 1)), kind)
        assert expected[:, 0, 0].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(("pairs", "least"), [(30, 0.9), (150, 0.92)])
def test_the_interval_covers_the_truth(pairs, least):
    """200 simulated heads with a lift of 4, each poem with a temper of its own."""
    poems = made_up_poems(2000, seed=1)
    poems = sorted(poems, key=lambda poem: not contains_pair(poem, PAIR))[: 200 + pairs]
    poems = [p for at, p in enumerate(poems) if at < pairs or not contains_pair(p, PAIR)]
    cells = find_cells([read_verse("\n" + poem) for poem in poems], PAIR)
    random = np.random.default_rng(0)
    temper = random.gamma(4, 1 / 4, (len(poems), 200))[cells.poem]
    noise = random.gamma(2, 1 / 2, temper.shape)
    lift = np.where(cells.kind == OCCURRENCE, 4, 1)
    values = (lift / (cells.distance + 2))[:, None] * temper * noise
    sums = sum_by_poem(PAIR, poems, cells, values[..., None], np.zeros((*values.shape, 1)))
    lifts = head_lifts(sums)
    for name in ("lift1", "lift2"):
        low, high = np.array([getattr(lift, name)[1:] for lift in lifts]).T
        assert least <= np.mean((low < 4) & (high > 4)) <= 0.99
        assert np.mean(low > 4) < 0.05  # what is claimed is the lower limit


def test_the_lift_equals_a_plain_count():
    """The vectorised statistic beside loops that follow the definition."""
    poems = made_up_poems(120, seed=5)
    random = np.random.default_rng(2)
    maps = {}
    for number, poem in enumerate(poems):
        rows = np.tril(random.exponential(size=(1, 1, 1, len(poem) + 1, len(poem) + 1)))
        maps[number] = rows / rows.sum(-1, keepdims=True)
    [sums] = pair_sums(poems, (([n], rows) for n, rows in maps.items()), [PAIR])
    [lift] = head_lifts(sums)

    cells = {"pair": [], "lift1": [], "lift2": []}  # (line length, place, distance), weight
    for number, poem in enumerate(poems):
        tokens, verse = "\n" + poem, read_verse("\n" + poem)
        for i in range(1, len(tokens)):
            for j in range(1, i - 1):
                query, key = tokens[i], tokens[j]
                kind = None
                if query == "光" and key == "月":
                    kind = "pair"
                elif query == "光" and key not in "光月，。":
                    kind = "lift1"
                elif key == "月" and query not in "光月，。":
                    kind = "lift2"
                if kind:
                    place = (verse.line[i], verse.length[i], verse.place[i], i - j)
                    cells[kind].append((place, maps[number][0, 0, 0, i, j]))
    observed = np.mean([weight for _, weight in cells["pair"]])
    for name in ("lift1", "lift2"):
        expected = []
        for place, _ in cells["pair"]:
            ways = [[w for other, w in cells[name] if other[at:] == place[at:]] for at in (0, 1, 3)]
            expected.append(np.mean(next((w for w in ways[:2] if len(w) >= 5), ways[2])))
        assert getattr(lift, name).value == pytest.approx(observed / np.mean(expected))
    assert lift.weight == pytest.approx(observed)


def test_pooled_trainings_count_a_poem_once():
    sums = sums_of(made_up_poems(100), planted, positional)
    one = sums.of_head(0, 0)
    [alone], [twice] = head_lifts(one), head_lifts(pool([one, one]))
    assert twice.lift1.value == pytest.approx(alone.lift1.value)
    assert pool([one, one]).n == 2 * one.n
    assert pool([one, one]).n_poems == one.n_poems
    noisy = replace(one, weight=one.weight * np.random.default_rng(0).gamma(1, 1, one.weight.shape))
    [alone], [twice] = head_lifts(noisy), head_lifts(pool([noisy, noisy]))
    assert twice.lift1 == pytest.approx(alone.lift1)  # no narrower for having it twice


def test_the_mean_over_heads_chooses_nothing():
    sums = sums_of(made_up_poems(100), flat, planted).mean_of_heads()
    assert sums.weight.shape[1:] == (1, 1)
    assert head_lifts(sums)[0].lift1.value == pytest.approx((5 + 1) / 2)


def test_poems_with_the_pair_are_all_chosen():
    poems = made_up_poems(300)
    chosen = choose_poems(poems, [PAIR], others=20)
    with_pair = [poem for poem in poems if contains_pair(poem, PAIR)]
    assert set(with_pair) <= set(chosen)
    assert len(chosen) <= len(with_pair) + 40
    assert chosen == choose_poems(poems, [PAIR], others=20)


@pytest.fixture(scope="module")
def gathered():
    """Evidence of an untrained model on made-up poems, and the poems that chose and judged."""
    poems = sorted(set(made_up_poems(400, seed=3)))
    train, held_out = poems[:300], poems[300:]
    vocabulary = Vocabulary.of([*poems, "山人"])
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=len(vocabulary), n_layer=2, n_head=2, n_embd=16))
    return gather_evidence(model, model, vocabulary, train, held_out), train, held_out


def test_no_held_out_poem_chooses_the_head(gathered, monkeypatch):
    evidence, train, held_out = gathered
    for row in evidence.rows:
        assert set(row.sums.poems) <= set(held_out)
    # The poems whose maps are taken before the head is chosen are training poems.
    asked = []
    monkeypatch.setattr(
        "maps.evidence.choose_head", lambda sums: asked.append(sums) or choose_head(sums)
    )
    vocabulary = Vocabulary.of([*train, *held_out])
    model = GPT(GPTConfig(vocab_size=len(vocabulary), n_layer=1, n_head=2, n_embd=8))
    pair_evidence(model, vocabulary, train, held_out, [PAIR])
    assert asked and all(set(sums.poems) <= set(train) for sums in asked)


def test_the_report_is_plain_json_and_readable(gathered):
    evidence, train, held_out = gathered
    data = evidence_dict(evidence)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["poems"] == {"train": len(train), "val": len(held_out)}
    roles = [row["role"] for row in data["rows"]]
    assert roles[:2] == ["asked", "untrained"]
    for role in ("control", "reverse"):  # each in the asked head, in its own, and untrained
        at = roles.index(role)
        assert roles[at : at + 3] == [role, role, "untrained"]
    untrained = data["rows"][1]  # here the untrained model is the model itself
    assert untrained["lift1"] == data["rows"][0]["lift1"]
    assert [cut["scope"] for cut in data["cuts"]] == ["head", "layer", "layer", "all"]
    too_small = [row for row in data["rows"] if row["key"] == "山"]
    assert all(row["too_small"] and row["lift1"] is None for row in too_small)
    text = format_evidence(data)
    assert "光→月" in text and "n too small" in text
    pooled = evidence_dict(pool_evidence([evidence, evidence]))
    json.dumps(pooled, allow_nan=False)
    assert pooled["rows"][0]["n"] == 2 * data["rows"][0]["n"]
    assert pooled["rows"][0]["poems"] == data["rows"][0]["poems"]
    assert "光→月" in format_evidence(pooled)


def test_a_character_that_looks_for_itself_is_not_asked_in_reverse():
    poems = ["人山水人，一二三人。"]
    roles = {pair: [p.role for p in questions(*pair, poems)] for pair in ("人人", "山人", "光月")}
    assert roles["人人"] == ["asked", "control", "control"]
    assert roles["山人"] == ["asked", "reverse"]  # nothing stands before 山
    assert roles["光月"].count("control") == 2 and roles["光月"][-1] == "reverse"


def test_controls_stand_before_the_query_as_often_as_the_key():
    texts = ["b, a x q"] * 5 + ["a, c d q"] * 3 + ["e q", "d q", "q e d", "bq"] * 20
    counts = {"a": 8, "b": 5, "x": 5, "c": 3, "d": 23, "e": 20, ",": 8, " ": 8}
    assert count_pairs(texts, "q") == counts

    def controls(key):
        return [pair.key for pair in questions("q", key, texts) if pair.role == "control"]

    assert controls("a") == ["b", "x"]  # the key 8 times, these 5, c 3, e 20
    assert controls(",") == ["a", "b"]  # no marks, and as often as one


def test_the_questions_are_the_same_whichever_poems_are_held_out():
    poems = sorted(set(made_up_poems(200, seed=7)))
    vocabulary = Vocabulary.of(poems)
    model = GPT(GPTConfig(vocab_size=len(vocabulary), n_layer=1, n_head=1, n_embd=8))
    asked = [
        gather_evidence(model, model, vocabulary, poems[at:], poems[:at], OTHERS[0], OTHERS[1])
        for at in (20, 100)
    ]
    pairs, others = ([row.pair for row in evidence.rows] for evidence in asked)
    assert pairs == others
    assert pool_evidence(asked).rows[0].sums.n == sum(evidence.rows[0].sums.n for evidence in asked)
    asked.append(gather_evidence(model, model, vocabulary, poems[20:], poems[:20]))
    with pytest.raises(ValueError, match="different questions|longer|shorter"):
        pool_evidence(asked)


def test_texts_longer_than_the_block_count_with_their_beginning():
    poems = sorted(set(made_up_poems(60, seed=8)))
    vocabulary = Vocabulary.of(poems)
    model = GPT(GPTConfig(len(vocabulary), block_size=13, n_layer=1, n_head=1, n_embd=8))
    texts = (poems[:40], poems[40:])
    whole = gather_evidence(model, model, vocabulary, *texts)
    begun = gather_evidence(model, model, vocabulary, *([p[:12] for p in side] for side in texts))
    assert evidence_dict(whole) == evidence_dict(begun)


def test_limits_without_an_end_are_cut():
    assert plain(Interval(2, 1, 570.6)) == [2, 1, 100]
    assert shown([2, 1, 100]) == "2.00 [1.00, >100]"


def even_shares(poems):
    """Maps of heads that share out evenly, as those of an untrained model."""
    for index, poem in enumerate(poems):
        rows = np.tril(np.ones((1, 2, 1, len(poem) + 1, len(poem) + 1)))
        yield [index], rows / rows.sum(-1, keepdims=True)


def test_heads_that_share_out_evenly_have_lift_one_where_places_are_matched():
    """How much an even share is depends on the place in the poem alone."""
    poems = made_up_poems(2000, seed=4)
    # 光 stands late where 月 stands before it: by place in the line alone the lift would be below 1.
    poems = [poem for poem in poems if "月" not in poem or "光" not in poem[:12]]
    [sums] = pair_sums(poems, even_shares(poems), [PAIR])
    assert sums.n > 300 and (sums.by_distance == 0).all()
    for lift in head_lifts(sums):
        assert lift.lift1.value == pytest.approx(1, abs=0.01)
        assert lift.lift2.value == pytest.approx(1, abs=0.01)
        assert lift.top_share == 0  # all have as much, so none is the top


def test_cases_without_a_company_are_counted_as_such():
    poems = made_up_poems(50) + ["月" + "，" * 40 + "光"]  # as far apart as no other two
    [sums] = pair_sums(poems, even_shares(poems), [PAIR])
    [alone] = pair_sums(poems[-1:], even_shares(poems[-1:]), [PAIR])
    assert (sums.left_out, alone.left_out, alone.n) == (1, 1, 0)
    assert pool([sums, sums]).left_out == 2
    apart = [
        "月一二三光，四五六七八。",
        "山一二三光，月五六七八。",
    ] * 3  # three others for each lift
    [few] = pair_sums(apart, even_shares(apart), [PAIR])
    apart += ["山一二三光，四五六七八。"] * 3  # six for the first
    [more] = pair_sums(apart, even_shares(apart), [PAIR])
    assert more.n == 3 and more.by_distance.sum(0).tolist() == [0, 3]
    assert few.n == 3 and few.by_distance.sum(0).tolist() == [3, 3]
