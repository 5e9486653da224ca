"""The index of training poems against a search by hand."""

import random

import pytest

from writing.novelty import NoveltyIndex

POEMS = [
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。",
    "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。",
]


def test_a_copy_is_found_whole():
    novelty = NoveltyIndex(POEMS).measure(POEMS[1])
    assert novelty.run == "白日依山尽黄河入海流欲穷千里目更上一层楼"
    assert novelty.source == POEMS[1]
    assert novelty.share == 1


def test_a_planted_run_is_found_across_punctuation():
    novelty = NoveltyIndex(POEMS).measure("江上风声夜来，风雨声花无故人。")
    assert novelty.run == "夜来风雨声花"
    assert novelty.source == POEMS[2]
    assert novelty.share == 2 / 9  # 13 characters have 9 runs of five


def test_a_run_does_not_go_from_one_poem_into_the_next():
    assert NoveltyIndex(POEMS).measure("低头思故乡白日依山尽").run in ("低头思故乡", "白日依山尽")


def test_nothing_shared():
    novelty = NoveltyIndex(POEMS).measure("甲乙丙丁戊己")
    assert (novelty.run, novelty.source, novelty.share) == ("", "", 0)


@pytest.mark.parametrize("poem", ["", "月", "明月光，"])
def test_a_poem_too_short_for_a_run_shares_none(poem):
    assert NoveltyIndex(POEMS).measure(poem).share == 0


def test_against_a_search_by_hand():
    rng = random.Random(0)

    def verse(length):
        return "".join(rng.choice("甲乙丙丁，。") for _ in range(length))

    poems = [verse(40) for _ in range(20)]
    index = NoveltyIndex(poems)
    bare = ["".join(c for c in poem if c not in "，。") for poem in poems]
    for _ in range(30):
        poem = verse(30)
        asked = "".join(c for c in poem if c not in "，。")
        runs = {asked[i:j] for i in range(len(asked)) for j in range(i + 2, len(asked) + 1)}
        longest = max((len(run) for run in runs if any(run in text for text in bare)), default=0)
        fives = [asked[i : i + 5] for i in range(len(asked) - 4)]
        share = sum(any(five in text for text in bare) for five in fives) / len(fives)
        novelty = index.measure(poem)
        assert len(novelty.run) == longest
        assert novelty.run in bare[poems.index(novelty.source)]
        assert novelty.share == pytest.approx(share)
