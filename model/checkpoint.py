"""Checkpoints: everything a training needs to go on, and a sample or a map needs to begin."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from model.gpt import GPT, GPTConfig

FORMAT = "mini-character-gpt 1"
KEYS = ("model_config", "characters", "model", "config", "step", "val_loss")  # what all readers use


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why and what to do."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write what shall stand at `path`: on success it takes the place of what stood
    there, in one step and flushed to disk; on any failure what stood there stays and nothing else
    is left."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:  # a full disk names no file
            error.filename = str(path)
        raise


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write `state` (plain values and tensors) so that `path` holds either the old or the new
    checkpoint, never half of one. Raises OSError where that fails, CheckpointError where the model
    is spoilt: such a checkpoint must not take the place of a good one."""
    for name, values in state["model"].items():
        if not values.isfinite().all():
            raise CheckpointError(
                f"{name} is not finite at step {state.get('step')}: lower --learning_rate and "
                "--muon_learning_rate or set --grad_clip 1; the last good checkpoint is kept"
            )
    # To memory first: torch reports a full disk as an internal error of its writer.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    with replacing(path) as file:
        file.write(buffer.getbuffer())


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote. Only plain values and tensors are read: a file that
    would run code is refused. Raises CheckpointError for any file that is not a checkpoint of ours."""
    path = Path(path)
    try:
        # torch does not compare the check sums, so a flipped bit would pass as another weight.
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
        if damaged:
            raise CheckpointError(f"{damaged} has another check sum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint {path}: run `python train.py` first") from None
    except Exception as error:  # torch raises many kinds for damaged or foreign files
        kind = "is damaged or not a checkpoint"
        if isinstance(error, OSError):
            kind = f"cannot be read ({error.strerror})"
        raise CheckpointError(f"{path} {kind}: train anew or name another out_dir") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this program: train one with train.py")
    missing = [name for name in KEYS if name not in state]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: train anew")
    return state


def load_model(path: str | Path) -> tuple[GPT, str, dict[str, Any]]:
    """The model of a checkpoint, on the CPU and in evaluation mode, its vocabulary as one string in
    id order, and the whole state. Raises CheckpointError."""
    state = load_checkpoint(path)
    try:
        model = GPT(GPTConfig(**state["model_config"]))
        model.load_state_dict(state["model"])
        characters = state["characters"]
        if len(characters) != model.config.vocab_size:
            raise ValueError("the vocabulary has another size than the model")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} does not fit this model: {reason}") from None
    return model.eval(), characters, state


def untrained_model(state: dict[str, Any]) -> GPT:
    """The model as it was at step 0: the control that no training has touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(state["config"]["seed"])
        return GPT(GPTConfig(**state["model_config"])).eval()
