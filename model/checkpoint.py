"""Checkpoints: everything a training needs to go on, and a sample or a map needs to begin."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from model.gpt import GPT, GPTConfig

FORMAT = "mini-character-gpt 1"
KINDS = {  # what all readers use
    "model_config": dict,
    "characters": str,
    "model": dict,
    "config": dict,
    "data_sha256": str,
    "step": int,
    "val_loss": float,
    "val_step": int,
}
SETTINGS = (
    "data",
    "extra_data",
    "fold",
    "probes",
    "seed",
    "max_iters",
    "batch_size",
)  # of "config"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why and what to do."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write what shall stand at `path`: on success it takes the place of what stood
    there, in one step and flushed to disk; on any failure what stood there stays and nothing else
    is left. A link stays a link. Raises OSError that names `path`, also where a folder or a device
    stands there."""
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "a folder or device is there", str(path))
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _take_place(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # where it could not be made, it cannot be removed
            temporary.unlink()
        # A full disk names no file, other failures one that the user has never heard of.
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def _take_place(new: Path, path: Path) -> None:
    """os.replace, which Windows refuses while another program, a virus scanner or a reader of ours,
    has the old file open: wait up to a second and a half for it."""
    for seconds in (0.1, 0.2, 0.4, 0.8):
        try:
            return os.replace(new, path)
        except PermissionError:
            if sys.platform != "win32":
                raise
            time.sleep(seconds)
    os.replace(new, path)


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
    wrong = [name for name, kind in KINDS.items() if not isinstance(state.get(name), kind)]
    wrong = wrong or [f"setting {name}" for name in SETTINGS if name not in state["config"]]
    if wrong:
        raise CheckpointError(f"{path} lacks or has spoilt: {', '.join(wrong)}; train anew")
    return state


@contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """Within it the parts of a checkpoint are put in place: what does not fit (parts of another
    version of this program, or of another program) becomes a CheckpointError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = " ".join(reason.split()).rstrip(".")
        advice = "train anew, or name another out_dir"
        raise CheckpointError(f"{path} does not fit this model: {reason}; {advice}") from None


def load_weights(model: GPT, weights: dict[str, Any]) -> None:
    """Put the weights of a checkpoint into a model. Raises ValueError or RuntimeError."""
    model.load_state_dict(weights)
    spoilt = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if spoilt:
        raise ValueError(f"{spoilt[0]} is not finite")


def load_model(path: str | Path) -> tuple[GPT, str, dict[str, Any]]:
    """The model of a checkpoint, on the CPU and in evaluation mode, its vocabulary as one string in
    id order, and the whole state, whose "val_loss" is NaN where it was not measured at that step.
    Raises CheckpointError."""
    state = load_checkpoint(path)
    if state["val_step"] != state["step"]:  # saved when the training was stopped
        state["val_loss"] = math.nan
    with fitting(path):
        config = GPTConfig(**state["model_config"])
        values = sum(tensor.numel() for tensor in state["model"].values())
        if values != config.parameters:  # known before memory for them is taken
            raise ValueError(
                f"it holds {values:,} weights, a model of its sizes {config.parameters:,}, unless "
                "another version of this program made it"
            )
        model = GPT(config)
        load_weights(model, state["model"])
        characters = state["characters"]
        if len(characters) != config.vocab_size:
            raise ValueError("the vocabulary has another size than the model")
    return model.eval(), characters, state


def untrained_model(state: dict[str, Any]) -> GPT:
    """The model as it was at step 0: the control that no training has touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(state["config"]["seed"])
        return GPT(GPTConfig(**state["model_config"])).eval()
