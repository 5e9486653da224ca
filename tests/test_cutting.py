"""Cutting an edge equals a softmax without that key."""

import math

import numpy as np
import pytest
import torch

from data.vocabulary import Vocabulary
from maps.corpus_maps import attention_over
from maps.cutting import (
    cut_edges,
    cut_pair,
    cuts_for_text,
    head_mask,
    nearest_others,
    next_log_probabilities,
)
from maps.evidence import Pair
from maps.verse import read_verse
from model.gpt import GPT, GPTConfig

TEXT = "床前明月光，疑是地上霜。"
VOCABULARY = Vocabulary.of([TEXT, "一二三四五"])
IDS = VOCABULARY.encode("\n" + TEXT)


@pytest.fixture(scope="module")
def model():
    """A small model whose every matrix does something."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=len(VOCABULARY), n_layer=2, n_head=2, n_embd=16))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def without_key(attention, query, key, cut_heads):
    """A stand-in for CausalSelfAttention.forward: -inf as the score of one key, then softmax."""

    def forward(x):
        q, k, v = attention.qkv(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(attention.head_size)
        scores = scores + attention.mask(scores.size(-1))
        scores[:, cut_heads, query, key] = -math.inf
        return attention.merge(scores.softmax(-1) @ v)

    return forward


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 0), (1, None), (None, None)])
def test_a_cut_is_a_softmax_without_that_key(model, monkeypatch, layer, head):
    idx, query, key = torch.tensor([IDS]), 5, 4
    cut = next_log_probabilities(
        model, idx, torch.tensor([query]), torch.tensor([key]), head_mask(model, layer, head)[None]
    )
    for at in range(2) if layer is None else [layer]:
        attention = model.blocks[at].attn
        heads = [0, 1] if head is None else [head]
        monkeypatch.setattr(attention, "forward", without_key(attention, query, key, heads))
    with torch.no_grad():
        expected = model(idx)[0][:, query].log_softmax(-1)
    torch.testing.assert_close(cut, expected, atol=1e-5, rtol=1e-5)


def test_each_text_of_a_batch_has_its_own_cut_and_the_model_is_as_before(model):
    idx = torch.tensor([IDS] * 3)
    query, key = torch.tensor([5, 9, 11]), torch.tensor([4, 9, 0])
    heads = torch.stack([head_mask(model, 0, 1), head_mask(model, 1), head_mask(model)])
    together = next_log_probabilities(model, idx, query, key, heads)
    for at in range(3):
        one = np.s_[at : at + 1]
        alone = next_log_probabilities(model, idx[one], query[one], key[one], heads[one])
        torch.testing.assert_close(together[one], alone, atol=1e-5, rtol=1e-5)
    plain = next_log_probabilities(model, idx, query)
    with torch.no_grad():
        expected = model(idx)[0][torch.arange(3), query].log_softmax(-1)
    torch.testing.assert_close(plain, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain, together, atol=1e-4)


def test_no_head_marked_changes_nothing(model):
    idx = torch.tensor([IDS])
    query, key = torch.tensor([5]), torch.tensor([4])
    nothing = torch.zeros(1, 2, 2, dtype=torch.bool)
    with torch.no_grad(), cut_edges(model, query, key, nothing):
        torch.testing.assert_close(model(idx)[0], model(idx)[0], atol=0, rtol=0)
    torch.testing.assert_close(
        next_log_probabilities(model, idx, query, key, nothing),
        next_log_probabilities(model, idx, query),
        atol=1e-6,
        rtol=0,
    )


def test_the_control_edge_is_the_nearest_other_character():
    verse = read_verse("\n一月二三光，四月光二三。")  # positions: 月 2, 光 5, 月 8, 光 9
    pair = Pair("光", "月")
    assert nearest_others(verse, pair, 5, 2) == [1, 3]
    assert nearest_others(verse, pair, 9, 2) == [1, 3]
    assert nearest_others(read_verse("\n月一光"), pair, 3, 1) == []  # 一 stands beside the query


def test_cuts_of_a_pair(model):
    poems = ["一月二三光，四五一二三。", "三月四五一，二三光五四。", "一二三四五，五四三二一。"]
    results = cut_pair(model, VOCABULARY, poems, Pair("光", "月"), 0, 1)
    assert [(r.layer, r.head) for r in results] == [(0, 1), (0, None), (1, None), (None, None)]
    assert results[0].poems == poems[:2]
    assert results[0].before_character.tolist() == [False, True]
    assert results[0].intervals() == {"cut": None, "control": None, "difference": None}
    # The first occurrence by hand: query 5, key 2, controls 1 and 3, ， follows.
    idx = torch.tensor([VOCABULARY.encode("\n" + poems[0])])
    following = VOCABULARY.encode("，")[0]

    def change(key):
        query, heads = torch.tensor([5]), head_mask(model, 0, 1)[None]
        before = next_log_probabilities(model, idx, query)[0, following]
        after = next_log_probabilities(model, idx, query, torch.tensor([key]), heads)
        return float(after[0, following] - before)

    assert results[0].cut[0] == pytest.approx(change(2), abs=1e-5)
    assert results[0].control[0] == pytest.approx((change(1) + change(3)) / 2, abs=1e-5)


def test_cuts_for_the_page(model):
    cuts = cuts_for_text(model, VOCABULARY, TEXT)
    [(_, weights)] = attention_over(model, VOCABULARY, [TEXT])
    single = {(c["layer"], c["head"], c["query"], c["key"]) for c in cuts if c["head"] is not None}
    strong = np.argwhere(weights[:, :, 0] >= 0.05)
    assert single == {(a + 1, h + 1, i, j) for a, h, i, j in strong.tolist() if i > 0}
    one = next(c for c in cuts if (c["layer"], c["head"], c["query"], c["key"]) == (2, None, 5, 4))
    idx, query, key = torch.tensor([IDS]), torch.tensor([5]), torch.tensor([4])
    after = next_log_probabilities(model, idx, query, key, head_mask(model, 1)[None])[0]
    before = next_log_probabilities(model, idx, query)[0]
    assert one["delta"] == pytest.approx(float(after[IDS[6]] - before[IDS[6]]), abs=1e-5)
    assert one["top"][0][0] == VOCABULARY.decode([int(after.argmax())])
    assert one["top"][0][1] == pytest.approx(float(after.max().exp()), abs=1e-5)
    assert all(c["delta"] is None for c in cuts if c["query"] == len(TEXT))
    assert all(0 <= c["key"] <= c["query"] for c in cuts)
