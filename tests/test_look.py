"""The terminal: the numbers are the map's, and columns stand under their heads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maps.capture import AttentionMap, MapError
from maps.look import SHADES, check_head, draw_head, look_at, position_of
from maps.terminal import pad, table, width

TEXT = "明月，moon月光。"


@pytest.fixture
def map() -> AttentionMap:
    T = len(TEXT) + 1
    weights = np.tril(np.random.default_rng(3).random((3, 2, T, T)) ** 6)
    weights /= weights.sum(-1, keepdims=True)
    return AttentionMap(weights.astype(np.float32), ["\n", *TEXT], 7, 5.0)


def at_column(line: str, column: int) -> str:
    """What a terminal shows from a column on, each wide character taking two."""
    while column > 0:
        column -= width(line[0])
        line = line[1:]
    assert column == 0, "a wide character straddles the column"
    return line


def test_width_in_columns():
    assert [width(text) for text in ("月", "a", "，", "█", "e\u0301", "")] == [2, 1, 2, 1, 1, 0]
    assert (
        pad("月", 5) == "月   " and pad("月", 5, right=True) == "   月" and pad("明月", 3) == "明月"
    )


@given(st.lists(st.lists(st.text("月a，1", max_size=5), min_size=3, max_size=3), min_size=1))
def test_columns_of_a_table_stand_under_each_other(rows):
    rows = [[cell + "|" for cell in row] for row in rows]  # makes cells visible, ends included
    lines = table(rows[0], rows[1:], left=3).split("\n")
    columns = [max(width(row[at]) for row in rows) for at in range(3)]
    starts = [0, columns[0] + 2, columns[0] + columns[1] + 4]
    for line, row in zip(lines, rows, strict=True):
        for start, cell in zip(starts, row, strict=True):
            assert at_column(line, start).startswith(cell)


def test_a_look_shows_the_greatest_weights_of_the_map(map):
    title, heading, *lines = look_at(map, "月").split("\n")
    i = TEXT.rindex("月") + 1  # the last one
    assert title.startswith(f"月（第 {i} 字）")
    rules = [at for at, line in enumerate(lines) if set(line) == {"─"}]
    assert rules == [0, 9, 18]  # one before each layer of two heads with four rows each
    rows = [line.split() for at, line in enumerate(lines) if at not in rules]
    assert len(rows) == 3 * 2 * 4
    for number, row in enumerate(rows):
        layer, head, rank = number // 8, number // 4 % 2, number % 4
        weights = map.weights[layer, head, i, : i + 1]
        if rank == 0:
            assert row.pop(0) == f"{layer + 1}.{head + 1}"
        key, *bar, position, weight, uniform, times = row
        j = int(position)
        assert weights[j] == np.sort(weights)[-1 - rank]
        assert key == ("始" if j == 0 else TEXT[j - 1])
        assert "".join(bar) == "█" * round(float(weights[j]) * 20)
        assert weight == f"{weights[j]:.3f}" and uniform == f"{1 / (i + 1):.3f}"
        assert times == f"{weights[j] * (i + 1):.1f}"
    # The last column ends where its head ends, and every line is as wide as the rule.
    assert {width(line) for line in [heading, *lines]} == {width(heading)}


def test_a_look_from_the_start_of_the_text_has_what_there_is(map):
    lines = look_at(map, "明", most=9).split("\n")
    assert len(lines) == 2 + 3 * (1 + 2 * 2)  # 明 sees the start and itself
    assert len(look_at(map, "月", most=1).split("\n")) == 2 + 3 * (1 + 2)


def test_what_is_shown_is_plain_text(map):
    for text in (look_at(map, "月"), draw_head(map, 1, 1)):
        assert all(c == "\n" or c.isprintable() for c in text)


def test_a_head_as_shaded_blocks(map):
    lines = draw_head(map, 2, 1).split("\n")
    T = len(map.tokens)
    assert "第 2 层第 1 头" in lines[0] and len(lines) == T + 3
    edges = [0, 0.02, 0.1, 0.3, 0.6, 1]
    for i in range(T):
        line = lines[2 + i]
        token = "始" if i == 0 else TEXT[i - 1]
        assert line.startswith(token) and width(line) == 4 + 2 * (i + 1)  # no later key
        for j in range(i + 1):
            assert at_column(lines[1], 4 + 2 * j).startswith("始" if j == 0 else TEXT[j - 1])
            block = at_column(line, 4 + 2 * j)[:2]
            shade = SHADES.index(block[0])
            assert block[0] == block[1]
            assert edges[shade] <= map.weights[1, 0, i, j] <= edges[shade + 1]


@pytest.mark.parametrize("query", ["霜", "月光", "", "\n"])
def test_a_query_that_is_not_a_character_of_the_text(map, query):
    with pytest.raises(MapError, match="is not one character of the text"):
        position_of(map, query)


@pytest.mark.parametrize(
    ("layer", "head", "says"),
    [(0, 1, "layer 0"), (4, 1, "layer 4.*1 to 3"), (1, 3, "head 3.*1 to 2"), (-1, None, "layer")],
)
def test_heads_that_are_not_there(map, layer, head, says):
    with pytest.raises(MapError, match=says):
        check_head(3, 2, layer, head)
