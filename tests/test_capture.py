"""Maps: equal to the model's weights, whatever its mode, and back from a file unchanged."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.vocabulary import DataError, Vocabulary
from maps.capture import (
    AttentionMap,
    MapError,
    capture,
    load_map,
    map_path,
    save_map,
    saved_maps,
)
from model.gpt import GPT, GPTConfig

VOCABULARY = Vocabulary("\n" + "".join(sorted("床前明月光疑是地上霜，。")))


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(len(VOCABULARY), 20, n_layer=3, n_head=2, n_embd=16, dropout=0.4))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model


@pytest.fixture
def map(model) -> AttentionMap:
    return capture(model, VOCABULARY, "床前明月光，", step=7, val_loss=2.5)


def test_the_map_is_what_the_explicit_path_weighs(model):
    found = capture(model.eval(), VOCABULARY, "床前明月光")
    idx = torch.tensor([VOCABULARY.encode("\n床前明月光")])
    x = torch.nn.functional.rms_norm(model.wte(idx), (16,))
    for layer, block in enumerate(model.blocks):  # block by block, as the model does
        y, weights = block.attn.explicit(torch.nn.functional.rms_norm(x, (16,)))
        np.testing.assert_allclose(found.weights[layer], weights[0].detach(), atol=1e-5)
        x = x + y
        x = x + block.mlp(torch.nn.functional.rms_norm(x, (16,)))
    assert found.tokens == list("\n床前明月光") and math.isnan(found.val_loss)


def test_rows_sum_to_one_and_the_upper_triangle_is_exactly_zero(map):
    assert map.weights.shape == (3, 2, 7, 7) and map.weights.dtype == np.float32
    assert not np.triu(map.weights, 1).any()
    np.testing.assert_allclose(map.weights.sum(-1), 1, atol=1e-6)


def test_capture_neither_hears_of_training_mode_nor_changes_it(model):
    a = capture(model.eval(), VOCABULARY, "床前")
    assert not model.training
    b = capture(model.train(), VOCABULARY, "床前")
    assert model.training and np.array_equal(a.weights, b.weights)
    assert not any(block.attn._forward_hooks for block in model.blocks)
    assert all(p.grad is None for p in model.parameters())


def test_the_leading_boundary_may_be_given(model):
    a, b = (capture(model, VOCABULARY, text) for text in ("床前", "\n床前"))
    assert np.array_equal(a.weights, b.weights)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", MapError, "empty text"),
        ("\n", MapError, "empty text"),
        ("月" * 20, MapError, "20 characters, the model reads 19"),
        ("X", DataError, "does not know X"),
    ],
)
def test_texts_that_have_no_map(model, text, error, says):
    with pytest.raises(error, match=says):
        capture(model, VOCABULARY, text)


def test_the_longest_text_has_a_map(model):
    assert capture(model, VOCABULARY, "月" * 19).weights.shape[-1] == 20


def test_saved_and_loaded(folder, map):
    path = folder / "maps" / "step_000007.npz"
    save_map(path, map)
    again = load_map(path)
    assert np.array_equal(again.weights, map.weights) and again.tokens == map.tokens
    assert (again.step, again.val_loss) == (7, 2.5) and os.listdir(path.parent) == [path.name]


def test_the_file_is_as_the_readme_says(tiny_run):
    path = tiny_run / "attention" / "0" / "step_000020.npz"
    with np.load(path, allow_pickle=False) as file:
        assert set(file.files) == {"weights", "tokens", "step", "val_loss"}
        assert file["weights"].dtype == np.float32 and file["weights"].shape[:2] == (2, 2)
        assert file["tokens"].dtype == "<U1" and file["tokens"][0] == "\n"
        assert file["step"] == 20 and 6 < file["val_loss"] < 8


def test_saved_maps_are_found_by_rising_step(tmp_path, map):
    for probe, step in ((10, 5), (2, 1000000), (2, 999999), (2, 0)):
        save_map(map_path(tmp_path, probe, step), map)
    (tmp_path / "attention" / "2" / "step_x.npz").touch()
    (tmp_path / "attention" / "notes").mkdir()
    found = saved_maps(tmp_path)
    assert list(found) == [2, 10]
    assert [path.stem for path in found[2]] == ["step_000000", "step_999999", "step_1000000"]
    with pytest.raises(MapError, match="no attention maps"):
        saved_maps(tmp_path / "attention")


def changed(map: AttentionMap, **values) -> dict:
    parts = {
        "weights": map.weights.copy(),
        "tokens": np.array(map.tokens, "<U1"),
        "step": np.int64(1),
        "val_loss": np.float64(1),
    }
    return parts | values


def spoil(weights: np.ndarray, at, value) -> np.ndarray:
    weights = weights.copy()
    weights[at] = value
    return weights


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: changed(m, weights=m.weights[0]), "shape"),
        (lambda m: changed(m, weights=m.weights[..., :-1]), "tokens and weights"),
        (lambda m: changed(m, weights=m.weights[:0]), "shape"),
        (lambda m: changed(m, weights=np.ones((1, 1, 7, 7), int)), "type int64"),
        (lambda m: changed(m, weights=spoil(m.weights, (0, 0, 3, 1), np.nan)), "not numbers"),
        (lambda m: changed(m, weights=spoil(m.weights, (0, 0, 3, 5), 0.1)), "later"),
        (lambda m: changed(m, weights=spoil(m.weights, (0, 0, 3, 1), -0.1)), "negative"),
        (lambda m: changed(m, weights=m.weights * 2), "do not sum to 1"),
        (lambda m: changed(m, weights=m.weights.astype(object)), "damaged"),
        (lambda m: changed(m, tokens=np.array(m.tokens, object)), "damaged"),
        (lambda m: changed(m, tokens=np.array(m.tokens[:-1])), "6 tokens"),
        (lambda m: changed(m, tokens=np.array(["两字"] * 7)), "characters"),
        (lambda m: changed(m, tokens=np.arange(7)), "characters"),
        (lambda m: changed(m, step=np.array([1, 2])), "damaged"),
        (lambda m: changed(m, val_loss=np.str_("low")), "damaged"),
        (lambda m: {"weights": m.weights}, "damaged"),
    ],
)
def test_what_is_no_map_is_refused(tmp_path, map, make, says):
    path = tmp_path / "map.npz"
    np.savez(path, **make(map))
    with pytest.raises(MapError, match=says):
        load_map(path)


def test_other_files_are_refused(tmp_path, map):
    path = tmp_path / "map.npz"
    with pytest.raises(MapError, match="no map"):
        load_map(path)
    with pytest.raises(MapError, match="damaged"):
        load_map(tmp_path)
    np.save(tmp_path / "map.npy", map.weights)
    for data in (b"", b"text", (tmp_path / "map.npy").read_bytes()):
        path.write_bytes(data)
        with pytest.raises(MapError, match="damaged"):
            load_map(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("maps") / "map.npz"
    map = capture(model, VOCABULARY, "床前明月光")
    save_map(path, map)
    return path, path.read_bytes(), map


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_file_is_refused_or_valid(good, data):
    path, original, _ = good
    mutated = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "swap"]))
        if kind == "set":
            mutated[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del mutated[at : at + data.draw(st.integers(1, 200))]
        elif kind == "insert":
            mutated[at:at] = data.draw(st.binary(max_size=20))
        else:
            mutated[at : at + 8] = mutated[at : at + 8][::-1]
        if not mutated:
            break
    mutant = path.with_name("mutant.npz")
    mutant.write_bytes(mutated)
    try:
        map = load_map(mutant)
    except MapError as error:
        assert "\n" not in str(error)
        return
    assert np.isfinite(map.weights).all() and not np.triu(map.weights, 1).any()
    np.testing.assert_allclose(map.weights.sum(-1), 1, atol=1e-4)
    assert map.weights.shape[-1] == len(map.tokens) and all(len(t) <= 1 for t in map.tokens)
