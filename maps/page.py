"""The page: maps in, one self-contained HTML file out.

`maps/page/` holds page.html, page.css, page.js and words.json (what the script says, in both
languages); `build_page` puts them and the data together. The file opens from disk with the
network off: its Content-Security-Policy allows nothing but its own style and script (by their
SHA-256), and the data stand in a block that the browser never runs.

What the page takes is one plain dict. Everything but `texts` may be left out:

    {
      "title": "out/tang",                      # the window's title
      "run": {
        "config": {"n_layer": 3, "n_head": 4},  # shown at the foot, in this order
        "step": 1500, "val_loss": 4.41,         # of the final model (nats per character)
        "commands": ["python view.py out/tang --atlas"],   # what to type where evidence is missing
        "baselines": [{"zh": "乱猜", "en": "uniform guess", "loss": 8.75}],   # lines in the loss chart
      },
      "texts": page_texts(...),                 # see there
      "loss": [[step, train_loss, val_loss]],   # None where not measured
      "atlas": [[{"key": "previous", "name_zh": "前一字", "name_en": "previous character",
                  "score": 6.2, "scores": {"previous": 6.2}}]],   # [layer][head]; optional parts
      "evidence": {...},                        # see below
    }

One text, as `page_texts` makes it:

    {
      "tokens": ["\\n", "床", "前"],            # position 0 is the mark that starts every document
      "n_layer": 3, "n_head": 4,
      "snapshots": [{"step": 0, "val_loss": 7.90, "weights": pack_weights(...)}],   # by step
      "predictions": [[["床", 0.02], ...], ...],   # final model, the likeliest first, per position
      "cuts": pack_cuts([...]),                 # final model, see there
    }

The snapshot of step 0 is the untrained model that every weight is compared with.

`evidence` (layers and heads count from 1; an interval is [value, low, high] or None):

    {
      "query": "光", "key": "月", "min_distance": 2, "min_n": 10,
      "poems": {"train": 30375, "val": 3330},
      "chosen": {"layer": 1, "head": 3},        # on training poems
      "rows": [{"query": "光", "key": "月", "role": "asked",   # related, control, reverse, untrained
                "n": 30, "layer": 1, "head": 3, "weight": 0.21, "lift1": [4.6, 3.1, 6.3],
                "lift2": [3.9, 2.7, 5.2], "top_share": 0.47, "too_small": False,
                "own_head": True,               # the head that this pair's training poems chose
                "left_out": 0,                  # cases with nothing to compare with, not in n
                "by_distance": [0.14, 0.03],    # shares of n matched by distance alone, for each lift
                "mean_heads_lift1": [1.2, 1.0, 1.4], "mean_heads_lift2": None}],   # optional
      "heads": [{"layer": 1, "head": 1, "chosen": False, "weight": 0.03, "lift1": [1.1, 0.8, 1.5],
                 "lift2": [1.0, 0.7, 1.4], "top_share": 0.02}],   # the asked pair, every head
      "cuts": [{"scope": "head", "layer": 1, "head": 3, "n": 30,   # or "layer", "all"
                "cut": [-0.12, -0.19, -0.05], "control": [-0.01, -0.03, 0.01],
                "difference": [-0.11, -0.18, -0.04]}],   # change of log p(true next), nats
      "partners": [{"key": "月", "n": 298, "layer": 1, "head": 3, "lift": [3.4, 2.6, 4.3]}],
      "notes": {"zh": ["…"], "en": ["…"]},
    }
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model.checkpoint import replacing

if TYPE_CHECKING:
    from maps.capture import AttentionMap

PARTS = Path(__file__).with_name("page")
DEFAULT_TITLE = "字看字 · attention"
DIGITS = 6  # significant digits of every number in the page: more than anyone reads
ONE_BYTE = 192  # packed weights below this many thousandths take one byte, others two

Prediction = Sequence[tuple[str, float]]
"""The likeliest next characters with their probabilities, best first."""


def page_texts(
    maps: Mapping[Any, Sequence[AttentionMap]],
    predictions: Mapping[Any, Sequence[Prediction]] | None = None,
    cuts: Mapping[Any, Sequence[Mapping[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """The page's `texts` from the saved maps of each probe text.

    maps: probe name -> its maps, one or more by rising step; all of one probe have the same tokens, and
    all are of one shape.
    predictions: probe name -> for each of the T positions the likeliest next characters.
    cuts: probe name -> what `pack_cuts` takes.
    """
    texts = []
    for probe, snapshots in maps.items():
        n_layer, n_head = snapshots[0].weights.shape[:2]
        texts.append(
            {
                "tokens": list(snapshots[0].tokens),
                "n_layer": n_layer,
                "n_head": n_head,
                "snapshots": [
                    {
                        "step": snapshot.step,
                        "val_loss": snapshot.val_loss,
                        "weights": pack_weights(snapshot.weights),
                    }
                    for snapshot in snapshots
                ],
                "predictions": [list(map(list, row)) for row in (predictions or {}).get(probe, [])],
                "cuts": pack_cuts((cuts or {}).get(probe, [])),
            }
        )
    return texts


def pack_weights(weights: np.ndarray) -> str:
    """Attention weights (n_layer, n_head, T, T) as base64 text, rounded to thousandths.

    Only the lower triangle is kept, head by head and row by row: the causal mask makes the rest
    zero. A value below 192 thousandths is one byte; a larger one is two, of which the first is
    192 + (value - 192) // 256. Most weights are small, so a cell takes little more than a byte.
    """
    rows, columns = np.tril_indices(weights.shape[2])
    cells = weights[:, :, rows, columns].astype(np.float64).ravel()
    thousandths = np.rint(cells * 1000).clip(0, 1000).astype(np.int64)
    wide = thousandths >= ONE_BYTE
    first = np.where(wide, ONE_BYTE + (thousandths - ONE_BYTE) // 256, thousandths)
    pairs = np.stack([first, (thousandths - ONE_BYTE) % 256], axis=1).astype(np.uint8)
    keep = np.stack([np.ones_like(wide), wide], axis=1)
    return base64.b64encode(pairs[keep].tobytes()).decode("ascii")


def pack_cuts(cuts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Group cut edges by what was cut.

    A cut is {"layer": 1, "head": 3, "query": 5, "key": 4, "delta": -0.213, "top": [["，", 0.81]]}:
    the weight from position `query` to position `key` set to zero and the row renormalised, in one
    head (counted from 1), in all heads of a layer (head None) or everywhere (layer None too);
    `delta` is the change of the true next character's log-probability in nats (None where there
    is no next character), `top` the likeliest next characters afterwards.

    Returns [{"layer", "head", "rows": [[query, key, delta, "，。照", 810, 40, 10], ...]}], delta
    and probabilities in thousandths.
    """
    scopes: dict[tuple[int | None, int | None], list[list[Any]]] = {}
    for cut in cuts:
        top = list(cut["top"])
        delta = cut["delta"]
        row = [
            int(cut["query"]),
            int(cut["key"]),
            None if delta is None or not math.isfinite(delta) else round(delta * 1000),
            "".join(character for character, _ in top),
            *(round(probability * 1000) for _, probability in top),
        ]
        scopes.setdefault((cut["layer"], cut["head"]), []).append(row)
    return [{"layer": layer, "head": head, "rows": rows} for (layer, head), rows in scopes.items()]


def build_page(data: Mapping[str, Any]) -> str:
    """The whole page as one string of HTML. `data` as described at the top of this file."""
    style = _part("page.css")
    script = _part("page.js")
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = str(data.get("title") or DEFAULT_TITLE).encode("utf-8", "replace").decode("utf-8")
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "script": script,
        "words": embed_json(json.loads(_part("words.json"))),
        "data": embed_json(data),
    }
    # One pass: what is put in isn't searched again, whatever the data say.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("page.html"))


def write_page(path: str | Path, data: Mapping[str, Any]) -> int:
    """Write the page whole or not at all, and return its size in bytes."""
    content = build_page(data).encode("utf-8")
    with replacing(path) as file:
        file.write(content)
    return len(content)


def embed_json(value: Any) -> str:
    """JSON that may stand inside a <script> block: no "<", no NaN, no lone surrogate.

    Numbers that JSON cannot hold become null.
    """
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # All of these can only stand inside JSON strings, where \u escapes mean the same.
    return re.sub(r"[<>&\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(value: Any) -> Any:
    """The same value in JSON's types: arrays as lists, floats rounded, not-a-number as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _source(inline: str) -> str:
    """The Content-Security-Policy source that allows exactly this inline text."""
    digest = hashlib.sha256(inline.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
