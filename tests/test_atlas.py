"""The atlas finds what was planted in made-up maps, and nothing in random ones."""

import json

import numpy as np
import pytest

from maps.atlas import (
    KINDS,
    associated_pairs,
    atlas_dict,
    format_atlas,
    name_head,
    rhyme_cells,
    row_kinds,
    score_heads,
)
from maps.bootstrap import Interval
from maps.lookup import find_partners, format_partners, partner_dicts
from maps.terminal import pad, table, width
from maps.verse import read_verse

ALPHABET = [chr(ord("一") + n) for n in range(30)]
ASSOCIATED = {("一", "丁"), ("丁", "一"), ("丂", "七"), ("七", "丂")}


def poems_of(number, lines, length, seed=0):
    random = np.random.default_rng(seed)
    verses = ["".join(random.choice(ALPHABET, length)) for _ in range(number * lines)]
    marked = [verse + "，。"[at % 2] for at, verse in enumerate(verses)]
    return ["".join(marked[at : at + lines]) for at in range(0, len(marked), lines)]


def planted_heads(verse, random):
    """For each name, (T, T) positive numbers of which the rows' shares are made."""
    codes, line, place = verse.codes, verse.line, verse.place
    i, j = np.indices((len(codes), len(codes)))
    end = verse.line_end
    both_ends = end[i] & end[j] & (i > j)
    even = line % 2 == 1
    pair = [ord(a) << 32 | ord(b) for a, b in ASSOCIATED]
    targets = {
        "previous": i - j == 1,
        "same": (codes[i] == codes[j]) & (i > j),
        "start": (j == 0) & (i > 0),
        "line_start": (place[j] == 0) & (line[i] == line[j]),
        "punctuation": ~verse.character[j] & (j > 0),
        "couplet": (place[i] == place[j]) & (line[i] == line[j] + 1) & even[i] & verse.character[i],
        "rhyme": both_ends & even[i] & even[j],
        "meaning": np.isin(codes[i].astype(np.int64) << 32 | codes[j], pair),
        "two lines back": both_ends & (line[i] == line[j] + 2),
    }
    heads = {name: np.where(cells, 20.0, 1.0) for name, cells in targets.items()}
    heads["flat"] = np.ones(i.shape)
    heads["random"] = random.exponential(size=i.shape)
    return {
        name: np.tril(head) / np.tril(head).sum(-1, keepdims=True) for name, head in heads.items()
    }


@pytest.fixture(scope="module")
def scored():
    """Names of the planted heads, and their scores."""
    poems = poems_of(60, 8, 5) + poems_of(40, 4, 7, seed=1)
    verses = [read_verse("\n" + poem) for poem in poems]
    names = [*planted_heads(verses[0], np.random.default_rng(0))]

    def maps():
        random = np.random.default_rng(0)
        for number, verse in enumerate(verses):
            heads = np.array([*planted_heads(verse, random).values()])
            yield [number], heads[None, :, None]

    return dict(zip(names, score_heads(poems, maps, ASSOCIATED), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_planted_heads_are_named(scored, kind):
    assert scored[kind].kind == kind
    assert scored[kind].scores[kind].low > 5


@pytest.mark.parametrize("name", ["flat", "random"])
def test_a_head_without_preference_is_mixed(scored, name):
    assert scored[name].kind == "mixed"
    for score in scored[name].scores.values():
        assert score.value == pytest.approx(1, abs=0.35)


def test_scores_know_position_from_content(scored):
    assert scored["couplet"].scores["meaning"].value == pytest.approx(1, abs=0.2)
    assert scored["couplet"].scores["same"].value == pytest.approx(1, abs=0.2)
    assert scored["meaning"].scores["couplet"].value == pytest.approx(1, abs=0.2)
    # Line ends two lines back, whether they rhyme or not: position, no rhyme.
    assert scored["two lines back"].scores["rhyme"].value == pytest.approx(1, abs=0.1)


def maps_of(poems, name):
    def maps():
        random = np.random.default_rng(0)
        for number, poem in enumerate(poems):
            yield [number], planted_heads(read_verse("\n" + poem), random)[name][None, None, None]

    return maps


@pytest.mark.parametrize("number", [1, 5, 12, 40])
@pytest.mark.parametrize("text", ["verse", "prose"])
def test_few_poems_give_no_number_or_a_finite_one(number, text):
    poems = poems_of(number, 8, 5)
    if text == "prose":  # lines of any length: at many places a single cell stands, and is the same
        random = np.random.default_rng(0)
        words = ["the", "cat", "sat", "on", "a", "mat", "and", "ate", "that", "rat", "while", "it"]
        poems = [" ".join(random.choice(words, 3 + at % 7)) for at in range(number)]
    scores = [score_heads(poems, maps_of(poems, name), ASSOCIATED) for name in ("flat", "random")]
    for [head] in scores:
        found = [score for score in head.scores.values() if score is not None]
        assert all(np.isfinite(score).all() for score in found)
        assert bool(found) == (number >= 12)
    json.dumps([atlas_dict(heads) for heads in scores], allow_nan=False)


def test_cells_that_nothing_can_be_compared_with_do_not_count():
    lines = [
        poem[:4] + poem[0] + poem[5:] for poem in poems_of(160, 1, 5)
    ]  # the fifth is the first
    poems = ["".join(lines[at : at + 4]) for at in range(0, len(lines), 4)]
    [head] = score_heads(poems, maps_of(poems, "flat"), ASSOCIATED)
    assert head.scores["same"].value == pytest.approx(1, abs=0.05)


def test_poems_that_differ_in_a_mark_alone_are_told_apart():
    """A pause within a line and the end of one are of the same kind to the cells, not to the lines."""
    poems = poems_of(30, 4, 5)
    paused = [poem.replace("，", "、") for poem in poems_of(30, 4, 5, seed=1)]
    one, other = poems + paused, paused + poems
    for kind in ("line_start", "couplet"):
        [[first], [second]] = [score_heads(p, maps_of(p, kind), ASSOCIATED) for p in (one, other)]
        assert first.scores[kind].value == pytest.approx(second.scores[kind].value)


def test_same_has_the_planted_lift(scored):
    """Rows of a softmax share one whole: with other targets in the row a target gets less, so the
    lift is below the planted 20."""
    assert 12 < scored["same"].scores["same"].value <= 20.5


def test_cells_of_a_row():
    verse = read_verse("\n一二三，四五六。")  # positions 1-3, 4, 5-7, 8
    cells = {
        kind: [sorted(np.flatnonzero(mask[7]).tolist()) for mask in masks]
        for kind, masks in row_kinds(verse).items()
    }
    assert cells == {
        "previous": [[6], [1, 2, 3, 5]],
        "start": [[0], [1, 2, 3, 4, 5, 6, 7]],
        "line_start": [[5], []],
        "punctuation": [[4], [1, 2, 3, 5]],
        "couplet": [[3], [1, 2]],
    }
    for targets, others in row_kinds(verse).values():
        assert not (targets & others).any()
        assert not targets[[0, 4, 8]].any()  # no rows of punctuation or the start


def test_couplets_are_two_lines_of_one_length():
    three = row_kinds(read_verse("\n一二三，四五六。七八九。"))["couplet"]
    for mask in three:
        assert mask[5:8].any(1).all() and not mask[9:].any()  # the third line begins another one
    uneven = row_kinds(read_verse("\n一二三四五，六七八九十一二。"))["couplet"]
    assert not any(mask.any() for mask in uneven)


def test_rhymes_are_even_lines_and_the_first_is_left_out():
    verse = read_verse("\n" + "一二三，四五六。" * 4)
    cells = rhyme_cells([verse])
    lines = {
        kind: set(zip(verse.line[cells.query[at]], verse.line[cells.key[at]], strict=True))
        for kind in range(3)
        for at in [cells.kind == kind]
    }
    even_by_two = {(3, 1), (5, 3), (7, 5), (5, 1), (7, 3)}  # lines from 0; 7 to 1 has no rival
    assert lines[0] == even_by_two
    assert lines[1] == {(3, 2), (5, 4), (5, 2), (7, 6), (7, 4), (7, 2)}
    assert lines[2] == {(4, 2), (6, 4), (6, 2)}


def test_a_name_needs_a_clear_score():
    shares = dict.fromkeys(KINDS, 0.1)
    scores = dict.fromkeys(KINDS, Interval(3.0, 1.9, 4.0))
    assert name_head(scores, shares) == "mixed"
    clear = {**scores, "start": Interval(9.0, 8.0, 10.0), "rhyme": Interval(3.0, 2.5, 4.0)}
    assert name_head(clear, {**shares, "start": 0.9}) == "rhyme"  # the start comes last
    rest = {**clear, "punctuation": Interval(9.0, 8.0, 10.0), "rhyme": Interval(1.0, 0.9, 1.1)}
    assert name_head(rest, {**shares, "punctuation": 0.2}) == "punctuation"
    assert name_head(clear, {**shares, "rhyme": 0.001}) == "start"
    assert name_head(dict.fromkeys(KINDS), shares) == "mixed"


def test_associated_pairs_stand_apart():
    documents = [
        "天一二，地三四。",
        "天五二，地六四。",
        "桃花一，五六二。",
        "桃花三，二一六。",
    ] * 10
    pairs = associated_pairs(documents, pairs=10)
    assert {("天", "地"), ("地", "天")} <= pairs
    assert ("桃", "花") not in pairs  # side by side always: a word


def test_tables_and_json(scored):
    heads = list(scored.values())
    layers = atlas_dict(heads)
    assert [head["key"] for head in layers[0]] == [head.kind for head in heads]
    assert layers[0][0]["name_zh"] == "前一字"
    json.dumps(layers, allow_nan=False)
    lines = format_atlas(heads).splitlines()
    assert len(lines) == 1 + len(heads) + 3
    assert "上句同位 couplet" in lines[6]


def test_whom_a_character_looks_for():
    poems = poems_of(300, 4, 5)
    verses = [read_verse("\n" + poem) for poem in poems]

    def maps():
        for number, verse in enumerate(verses):
            codes = verse.codes
            size = len(codes)
            liked = np.where(codes == ord("丁"), 6.0, 1.0) * np.ones((size, 1))  # by everyone
            chosen = (codes[:, None] == ord("一")) & (codes == ord("七"))
            heads = np.array([np.ones((size, size)), np.where(chosen, 8.0, liked)])
            heads = np.tril(heads) / np.tril(heads).sum(-1, keepdims=True)
            yield [number], heads[None, :, None]

    partners = find_partners(poems, maps(), "一", min_count=10)
    assert (partners[0].key, partners[0].layer, partners[0].head) == ("七", 0, 1)
    assert partners[0].lift.low > 3
    everyones = next((p for p in partners if p.key == "丁"), None)
    assert everyones is None or everyones.lift.value < 1.5
    assert partners[0].lift.value < min(partners[0].lift1, partners[0].lift2)  # shrunk
    json.dumps(partner_dicts(partners), allow_nan=False)
    assert "一→七" in format_partners("一", partner_dicts(partners)).splitlines()[1]
    assert find_partners(poems, maps(), "一", min_count=10_000) == []


def test_wide_characters_fill_two_columns():
    assert width("月a，") == 5
    assert (
        pad("月", 4) == "月  " and pad("月", 4, right=True) == "  月" and pad("月光", 2) == "月光"
    )
    assert {
        width(line) for line in table(["头", "n"], [["一二", "10"], ["ab", " 5"]]).splitlines()
    } == {8}
