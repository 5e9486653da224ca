"""From the folder of a run to its page: maps, predictions, cuts, losses, evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from data.vocabulary import BOUNDARY, Vocabulary
from maps.capture import AttentionMap, MapError, capture, load_map, saved_maps
from maps.corpus_maps import evaluating
from maps.cutting import cuts_for_text
from maps.page import page_texts, write_page
from model.checkpoint import replacing, untrained_model
from model.gpt import GPT

EVIDENCE, ATLAS = "evidence.json", "atlas.json"  # what `view.py` leaves in the folder for the page
MEASURES = 2  # see `_model_of`


def predict(model: GPT, vocabulary: Vocabulary, text: str) -> list[list]:
    """The likeliest characters after each position of "\\n" + text: T lists of five
    (character, probability), best first."""
    idx = torch.tensor([vocabulary.encode(BOUNDARY + text)])
    with evaluating(model):
        logits, _ = model(idx)
    probability, ids = logits[0].softmax(-1).topk(min(5, len(vocabulary)))
    return [
        [(vocabulary.decode([i]), p) for i, p in zip(row_ids, row, strict=True)]
        for row_ids, row in zip(ids.tolist(), probability.tolist(), strict=True)
    ]


def read_metrics(out_dir: str | Path) -> list[dict[str, Any]]:
    """The objects in a run's metrics.jsonl, without lines that a power cut or a kill has spoilt.
    Raises MapError where there is no such file."""
    path, entries = Path(out_dir) / "metrics.jsonl", []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise MapError(f"no {path}: run train.py first") from None
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        known = isinstance(entry, dict) and {"step", "train_loss", "val_loss"} <= entry.keys()
        if known and isinstance(entry["step"], int):
            entries.append(entry)
    return entries


def write_json(path: str | Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1).encode())


def keep(out_dir: str | Path, name: str, state: dict[str, Any], found: Any) -> None:
    """Leave in the folder, for the page, what was found about the model of `state`."""
    write_json(Path(out_dir) / name, {"model": _model_of(state), "found": found})


def kept(out_dir: str | Path, name: str, state: dict[str, Any]) -> Any:
    """What `keep` left about the model of `state`; None where there is nothing, or what there is
    is about another model, since trained on or anew. Raises MapError where the file is damaged."""
    path = Path(out_dir) / name
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return held["found"] if held["model"] == _model_of(state) else None
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise MapError(f"{path} is damaged ({error}): delete it") from None


def _model_of(state: dict[str, Any]) -> str:
    """What tells a model from those before and after it: the hash of its weights; and what is measured,
    by a number that rises when figures come to mean something else."""
    weights = sha256()
    for values in state["model"].values():
        weights.update(values.cpu().numpy().tobytes())
    return f"measures {MEASURES}, step {state['step']}, weights {weights.hexdigest()}"


def run_maps(out_dir: str | Path) -> dict[str, list[AttentionMap]]:
    """The maps in a folder: number of the text -> its maps by rising step. Raises MapError."""
    found = {
        str(number): [load_map(path) for path in paths]
        for number, paths in saved_maps(out_dir).items()
    }
    shapes = {map.weights.shape[:2] for maps in found.values() for map in maps}
    if len(shapes) > 1 or any(
        map.tokens != maps[0].tokens for maps in found.values() for map in maps
    ):
        raise MapError(f"the maps in {out_dir} are of several models or texts: keep one run's only")
    return found


def write_maps_page(out_dir: str | Path, path: str | Path) -> int:
    """Write the page of a folder's maps alone, without a model (`sample.py --maps` leaves such a
    folder), and return its size in bytes. Raises MapError."""
    return write_page(path, {"title": _title(out_dir), "texts": page_texts(run_maps(out_dir))})


def _title(out_dir: str | Path) -> str:
    return f"{Path(out_dir).resolve().name} · attention"


def quoted(path: str | Path) -> str:
    """A path as it is typed in a terminal: in quotes, which all shells know, where it has spaces."""
    return f'"{path}"' if " " in str(path) else str(path)


def _commands(out_dir: str | Path, vocabulary: Vocabulary) -> list[str]:
    """What to type for the evidence and the atlas of a run, for a pair that its vocabulary has."""
    known = [character for character in vocabulary.characters[1:] if not character.isspace()]
    letters = [character for character in known if character.isalpha()] or known
    query, key = "光月" if {"光", "月"} <= set(letters) else (letters * 2)[:2]
    flags = (f"--query {query} --key {key} --evidence", "--atlas")
    return [f"python view.py {quoted(out_dir)} {flag}" for flag in flags]


def write_run_page(
    out_dir: str | Path,
    path: str | Path,
    model: GPT,
    vocabulary: Vocabulary,
    state: dict[str, Any],
    texts: Sequence[str] = (),
) -> int:
    """Write the page of a run and return its size in bytes.

    Shown are the run's probe texts with all saved steps, or instead `texts` through the checkpoint,
    with the untrained model's map as step 0. Raises MapError or DataError.
    """
    step, val_loss = state["step"], state["val_loss"]
    if texts:
        untrained = untrained_model(state)
        maps = {
            str(number): [
                capture(untrained, vocabulary, text),
                capture(model, vocabulary, text, step, val_loss),
            ]
            for number, text in enumerate(texts)
        }
    else:
        maps = run_maps(out_dir)
    shown = {name: "".join(found[-1].tokens[1:]) for name, found in maps.items()}
    config = state["model_config"] | state["config"]
    names = ["n_layer", "n_head", "n_embd", "max_iters", "batch_size", "fold", "seed", "data"]
    names += ["extra_data"] if config["extra_data"] else []
    data = {
        "title": _title(out_dir),
        "run": {
            "config": {name: config[name] for name in names},
            "step": step,
            "val_loss": val_loss,
            "commands": _commands(out_dir, vocabulary),
            "baselines": [
                {"zh": "乱猜", "en": "uniform guess", "loss": math.log(len(vocabulary))},
                *state.get("baselines", []),
            ],
        },
        "texts": page_texts(
            maps,
            {name: predict(model, vocabulary, text) for name, text in shown.items()},
            {name: cuts_for_text(model, vocabulary, text) for name, text in shown.items()},
        ),
        "loss": [[m["step"], m["train_loss"], m["val_loss"]] for m in read_metrics(out_dir)],
        "atlas": kept(out_dir, ATLAS, state),
        "evidence": kept(out_dir, EVIDENCE, state),
    }
    return write_page(path, {name: value for name, value in data.items() if value is not None})
