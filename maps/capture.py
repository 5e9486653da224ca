"""From a text and a model to a map, and from a map to a file and back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.vocabulary import BOUNDARY, Vocabulary
from maps.corpus_maps import attention_over
from model.checkpoint import replacing
from model.gpt import GPT

ROW_TOLERANCE = 1e-4  # how far a row's sum may be from 1: float32 rounding over a block


class MapError(ValueError):
    """A map that cannot be made or read; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class AttentionMap:
    """What each character of one text looks at, in each head, at one step of a training.

    weights: float32 (n_layer, n_head, T, T), row = query, column = key, every row sums to 1 and the
    upper triangle is 0. tokens: T characters, the first one "\\n". step: training steps done.
    val_loss: nats a character at that step, NaN where not measured.
    """

    weights: np.ndarray
    tokens: list[str]
    step: int
    val_loss: float


def capture(
    model: GPT,
    vocabulary: Vocabulary,
    text: str,
    step: int = 0,
    val_loss: float = math.nan,
) -> AttentionMap:
    """The map of `text` (without its leading "\\n"), in evaluation mode whatever the model's state.

    Raises MapError for a text longer than the block, DataError for an unknown character.
    """
    text = text.removeprefix(BOUNDARY)
    longest = model.config.block_size - 1
    if not text:
        raise MapError("an empty text has no map: give at least one character")
    if len(text) > longest:
        raise MapError(
            f"the text has {len(text)} characters, the model reads {longest}: shorten it"
        )
    [(_, weights)] = attention_over(model, vocabulary, [text])
    return AttentionMap(weights[:, :, 0], [BOUNDARY, *text], step, val_loss)


def save_map(path: str | Path, map: AttentionMap) -> None:
    """Write a map as npz (weights, tokens <U1, step, val_loss); the folder is made if need be."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(
            file,
            weights=map.weights.astype(np.float32),
            tokens=np.array(map.tokens, "<U1"),
            step=np.int64(map.step),
            val_loss=np.float64(map.val_loss),
        )


def load_map(path: str | Path) -> AttentionMap:
    """Read and check a map. Raises MapError where it is damaged or is no attention map."""
    try:
        with np.load(path, allow_pickle=False) as file:
            weights, tokens = file["weights"], file["tokens"]
            step, val_loss = int(file["step"]), float(file["val_loss"])
    except FileNotFoundError:
        raise MapError(f"no map {path}: run train.py to make maps") from None
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for damaged files
        reason = " ".join(str(error).split())
        raise MapError(f"{path} is damaged or no attention map ({reason}); delete it") from None
    fault = _fault(weights, tokens)
    if fault:
        raise MapError(f"{path} is no attention map: {fault}; delete it and train anew")
    return AttentionMap(weights, [str(token) for token in tokens], step, val_loss)


def _fault(weights: np.ndarray, tokens: np.ndarray) -> str | None:
    if tokens.dtype not in ("<U1", ">U1") or tokens.ndim != 1 or not len(tokens):
        return "its tokens are not a list of characters"
    if weights.dtype.kind != "f" or weights.ndim != 4 or 0 in weights.shape:
        return f"its weights have type {weights.dtype} and shape {weights.shape}"
    if weights.shape[2:] != (len(tokens), len(tokens)):
        return f"it has {len(tokens)} tokens and weights of shape {weights.shape}"
    if not np.isfinite(weights).all():
        return "it has weights that are not numbers"
    if (weights < 0).any() or np.triu(weights, 1).any():
        return "it has negative weights, or weights on characters that come later"
    if np.abs(weights.sum(-1) - 1).max() > ROW_TOLERANCE:
        return "its rows do not sum to 1"
    return None


def map_path(out_dir: str | Path, probe: int, step: int) -> Path:
    """Where a run keeps the map of a probe text at a step."""
    return Path(out_dir) / "attention" / str(probe) / f"step_{step:06d}.npz"


def saved_maps(out_dir: str | Path) -> dict[int, list[Path]]:
    """The map files of a run: probe number -> paths, by rising step. Raises MapError if none."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in Path(out_dir).glob("attention/*/step_*.npz"):
        step = re.fullmatch(r"step_(\d+)", path.stem)
        if path.parent.name.isdecimal() and step:
            found.setdefault(int(path.parent.name), []).append((int(step[1]), path))
    if not found:
        raise MapError(f"no attention maps in {out_dir}: run `python train.py --out_dir {out_dir}`")
    return {probe: [path for _, path in sorted(found[probe])] for probe in sorted(found)}
