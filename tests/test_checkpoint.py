"""Checkpoints: whole or not there, read without running anything, refused when damaged."""

import io
import math
import os
import pickle
import random
import zipfile

import pytest
import torch

from model import checkpoint as checkpoint_module
from model.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_model,
    replacing,
    save_checkpoint,
)
from model.gpt import GPT, GPTConfig
from tests.conftest import same


@pytest.fixture
def state() -> dict:
    torch.manual_seed(0)
    model = GPT(GPTConfig(4, block_size=8, n_layer=1, n_head=1, n_embd=4))
    return {
        "model_config": {
            "vocab_size": 4,
            "block_size": 8,
            "n_layer": 1,
            "n_head": 1,
            "n_embd": 4,
            "dropout": 0.0,
        },
        "characters": "\n床前月",
        "model": model.state_dict(),
        "config": {
            "data": "poems.txt",
            "extra_data": "",
            "fold": 0,
            "probes": [],
            "seed": 1,
            "max_iters": 5,
            "batch_size": 64,
        },
        "data_sha256": "0",
        "step": 3,
        "val_loss": 1.5,
        "val_step": 3,
    }


def test_what_is_saved_comes_back(folder, state):
    path = folder / "ckpt.pt"
    save_checkpoint(path, state)
    found = load_checkpoint(path)
    assert same({k: v for k, v in found.items() if k != "format"}, state)
    assert os.listdir(folder) == [path.name]
    model, characters, _ = load_model(path)
    assert characters == "\n床前月" and not model.training
    assert same(dict(model.state_dict()), dict(state["model"]))


def test_plain_torch_reads_it_with_weights_only(tiny_run):
    state = torch.load(tiny_run / "ckpt.pt", weights_only=True)
    assert state["step"] == 20 and isinstance(state["characters"], str)


def test_replacing_keeps_the_former_file_when_writing_fails(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"former")
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, replacing(path) as file:
            file.write(b"half")
            raise error
        assert path.read_bytes() == b"former" and os.listdir(tmp_path) == ["file"]
        if isinstance(error, OSError):
            assert raised.value.filename == str(path)


@pytest.mark.parametrize("name", ["none/file", "file"])
def test_a_failure_names_the_file_and_not_the_temporary_one(tmp_path, monkeypatch, name):
    def refused(source, target):
        raise PermissionError(13, "Permission denied", str(source), None, str(target))

    monkeypatch.setattr(checkpoint_module.os, "replace", refused)
    with pytest.raises(OSError) as raised, replacing(tmp_path / name):
        pass
    assert raised.value.filename == str(tmp_path / name) and raised.value.filename2 is None
    assert not os.listdir(tmp_path)


def test_replacing_keeps_a_folder_a_device_and_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", os.devnull):
        with pytest.raises(FileExistsError) as raised, replacing(path):
            raise AssertionError("it must not come so far")
        assert raised.value.filename == str(path) and os.listdir(tmp_path) == ["folder"]
    try:
        (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    except OSError:
        pytest.skip("no right to make links")
    if not (tmp_path / "link").is_symlink():
        pytest.skip("no links on this system")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"new"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_spoilt_weights_are_never_saved(tmp_path, state, value):
    path = tmp_path / "ckpt.pt"
    save_checkpoint(path, state)
    former = path.read_bytes()
    state["model"]["wte.weight"][1, 2] = value
    with pytest.raises(CheckpointError, match="wte.weight is not finite at step 3"):
        save_checkpoint(path, state)
    assert path.read_bytes() == former and os.listdir(tmp_path) == ["ckpt.pt"]


def test_any_flipped_byte_is_noticed_or_harmless(tmp_path, state):
    path = tmp_path / "ckpt.pt"
    save_checkpoint(path, state)
    data, expected = path.read_bytes(), load_checkpoint(path)
    chance = random.Random(0)
    refused = 0
    for at in chance.sample(range(len(data)), 150):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            refused += 1
        else:  # padding, time stamps and the like: nothing that is read
            assert same(found, expected)
    assert refused > 30


def test_a_flipped_bit_in_a_weight_is_refused(tmp_path, state):
    path = tmp_path / "ckpt.pt"
    save_checkpoint(path, state)
    data = bytearray(path.read_bytes())
    at = data.index(state["model"]["wte.weight"].numpy().tobytes()[:8])
    data[at] ^= 1
    path.write_bytes(data)
    assert torch.load(path, weights_only=True)["step"] == 3  # torch itself takes it
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.999])
def test_truncated(tmp_path, state, share):
    path = tmp_path / "ckpt.pt"
    save_checkpoint(path, state)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load_checkpoint(path)


class Evil:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("kind", ["torch", "old torch", "pickle"])
def test_code_in_a_checkpoint_is_not_executed(tmp_path, kind, state):
    path, trace = tmp_path / "ckpt.pt", tmp_path / "executed"
    evil = state | {"format": checkpoint_module.FORMAT, "step": Evil(trace)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(evil))
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=kind == "torch")
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    assert not trace.exists()


def test_files_of_other_programs(tmp_path, state):
    path = tmp_path / "ckpt.pt"
    torch.save({"model": {}, "iter_num": 3}, path)  # nanoGPT's
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        load_checkpoint(path)
    torch.save(torch.ones(3), path)
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        load_checkpoint(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", "text")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load_checkpoint(path)
    buffer = io.BytesIO()
    torch.save(state | {"format": checkpoint_module.FORMAT}, buffer)
    lacking = {k: v for k, v in state.items() if k != "characters"}
    torch.save(lacking | {"format": checkpoint_module.FORMAT}, path)
    with pytest.raises(CheckpointError, match="lacks or has spoilt: characters; train"):
        load_checkpoint(path)
    config = {k: v for k, v in state["config"].items() if k not in ("fold", "seed")}
    save_checkpoint(path, state | {"config": config})
    with pytest.raises(
        CheckpointError, match="lacks or has spoilt: setting fold, setting seed; train"
    ):
        load_checkpoint(path)


def test_a_loss_of_an_earlier_step_is_not_the_models(tmp_path, state):
    save_checkpoint(tmp_path / "ckpt.pt", state)
    assert load_model(tmp_path / "ckpt.pt")[2]["val_loss"] == 1.5
    save_checkpoint(tmp_path / "ckpt.pt", state | {"val_step": 2})
    assert math.isnan(load_model(tmp_path / "ckpt.pt")[2]["val_loss"])


def test_windows_is_given_time_to_close_the_former_file(tmp_path, monkeypatch):
    replace, refusals = os.replace, [PermissionError(13, "Permission denied")] * 3

    def busy(source, target):
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr(checkpoint_module.os, "replace", busy)
    monkeypatch.setattr(checkpoint_module.sys, "platform", "win32")
    monkeypatch.setattr(checkpoint_module.time, "sleep", lambda seconds: None)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]
    refusals += [PermissionError(13, "Permission denied")] * 9
    with pytest.raises(PermissionError), replacing(tmp_path / "file") as file:
        file.write(b"newer")
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"characters": "\n床前月光"}, "another size"),
        ({"model_config": {"vocab_size": 4, "n_layr": 2}}, "n_layr"),
        ({"model_config": {"vocab_size": 4, "n_layer": 2, "n_head": 1, "n_embd": 4}}, "weights"),
        ({"model_config": {"vocab_size": 4, "n_embd": 4_000_000}}, "weights"),  # before allocating
        ({"model": {}}, "it holds 0 weights, a model of its sizes 232"),
    ],
)
def test_parts_that_do_not_fit_each_other(tmp_path, state, change, says):
    path = tmp_path / "ckpt.pt"
    save_checkpoint(path, state | change)
    with pytest.raises(CheckpointError, match=f"does not fit.*{says}"):
        load_model(path)


def test_a_checkpoint_of_another_version(tmp_path, state):
    weights = {k: v for k, v in state["model"].items() if "distance_bias" not in k}
    save_checkpoint(tmp_path / "ckpt.pt", state | {"model": weights})
    with pytest.raises(CheckpointError, match="does not fit.*another version.*train anew"):
        load_model(tmp_path / "ckpt.pt")


def test_spoilt_weights_are_not_read_either(tmp_path, state):
    state["model"]["wte.weight"][1, 2] = float("nan")
    torch.save(state | {"format": checkpoint_module.FORMAT}, tmp_path / "ckpt.pt")
    with pytest.raises(CheckpointError, match="wte.weight is not finite"):
        load_model(tmp_path / "ckpt.pt")


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", None), ("characters", ["\n", "床"]), ("step", "3"), ("val_loss", torch.ones(2))],
)
def test_parts_of_another_kind(tmp_path, state, name, value):
    other = state | {"format": checkpoint_module.FORMAT, name: value}
    torch.save(other, tmp_path / "ckpt.pt")
    with pytest.raises(CheckpointError, match=f"lacks or has spoilt: {name}; train anew"):
        load_checkpoint(tmp_path / "ckpt.pt")


def test_missing(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint .*train.py"):
        load_checkpoint(tmp_path / "ckpt.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)
