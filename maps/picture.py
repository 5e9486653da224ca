"""A map, or a training's losses, as a picture (PNG by matplotlib, which is loaded only here)."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maps.capture import AttentionMap, MapError
from maps.look import check_head, position_of, shown
from model.checkpoint import replacing

FONTS = (  # those that Linux, macOS and Windows bring or offer, most legible first
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Songti SC",
    "Microsoft YaHei",
    "SimHei",
    "SimSun",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Serif CJK SC",
    "AR PL UMing CN",
    "Arial Unicode MS",
)
SIZE = {"one": 7.0, "small": 2.6}  # inches of a large map, and of one in the grid


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MapError(
            "pictures need matplotlib: run `pip install -r requirements-dev.txt`"
        ) from None
    matplotlib.use("Agg")
    return matplotlib


def chinese_font() -> str | None:
    """The first font here that has Chinese characters, or None."""
    _matplotlib()
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in FONTS if name in known), None)


def _save(figure: Any, path: str | Path, font: str | None) -> None:
    """Write a figure whole or not at all."""
    import matplotlib

    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"axes.unicode_minus": False}):
        # A character that even the Chinese font lacks becomes a box; that is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    with replacing(path) as file:
        file.write(buffer.getvalue())


def _labels(map: AttentionMap, font: str | None) -> list[str]:
    """What stands at the axes: characters, with a number where they repeat, or positions."""
    if font is None:
        return [str(i) for i in range(len(map.tokens))]
    return [shown(token) for token in map.tokens]


def draw_maps(
    map: AttentionMap,
    path: str | Path,
    layer: int | None = None,
    head: int | None = None,
    query: str | None = None,
) -> None:
    """Save one head large (`layer` and `head`, counted from 1) or all heads as a grid; the row of
    the last `query` is marked. Without a Chinese font the axes show positions, and a line on
    stderr names what to install. Raises MapError for a head or a query that is not there.
    """
    check_head(*map.weights.shape[:2], layer, head)
    row = position_of(map, query) if query else None
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    font = chinese_font()
    if font is None:
        print(
            "warning: no Chinese font found, so positions stand in for characters; install one, "
            "for example Noto Sans CJK (Debian: fonts-noto-cjk)",
            file=sys.stderr,
        )
    layers = range(map.weights.shape[0]) if layer is None else [layer - 1]
    heads = range(map.weights.shape[1]) if head is None else [head - 1]
    single = len(layers) == len(heads) == 1
    size = SIZE["one" if single else "small"]
    with matplotlib.rc_context({"font.family": [font] if font else ["DejaVu Sans"]}):
        # A Figure of its own, not pyplot's: nothing keeps it alive after this call.
        figure = Figure(figsize=(size * len(heads), size * len(layers)), layout="constrained")
        axes = figure.subplots(len(layers), len(heads), squeeze=False)
        for r, at_layer in enumerate(layers):
            for c, at_head in enumerate(heads):
                image = _draw(axes[r][c], map, at_layer, at_head, row, font, single)
        bar = figure.colorbar(image, ax=axes.ravel().tolist(), shrink=0.6)
        zh = font is not None
        bar.set_label("注意力权重 (weight)" if zh else "attention weight")
        text = f"step {map.step}, validation loss {map.val_loss:.3f}"
        figure.suptitle(text, fontsize=10)
        note = (
            "权重不是解释 · a weight is not an explanation"
            if zh
            else "a weight is not an explanation"
        )
        figure.supxlabel(note, fontsize=8, color="0.4")
        _save(figure, path, font)


def _draw(
    ax: Any,
    map: AttentionMap,
    layer: int,
    head: int,
    row: int | None,
    font: str | None,
    large: bool,
) -> Any:
    image = ax.imshow(map.weights[layer, head], cmap="cividis", vmin=0, vmax=1)
    ax.set_title(f"{layer + 1}.{head + 1}", fontsize=9)
    labels = _labels(map, font)
    if large or len(labels) <= 26:
        fontsize = 10 if large and len(labels) <= 40 else 5
        ax.set_xticks(range(len(labels)), labels, fontsize=fontsize)
        ax.set_yticks(range(len(labels)), labels, fontsize=fontsize)
        ax.tick_params(length=0, pad=1)
    else:
        ax.set_xticks([])
        ax.set_yticks([])
    if large:
        ax.set_xlabel("被看的字 (key)" if font else "key")
        ax.set_ylabel("正在读的字 (query)" if font else "query")
    if row is not None:
        ax.axhspan(row - 0.5, row + 0.5, fill=False, edgecolor="tab:red", linewidth=1.2)
    return image


def draw_loss(
    metrics: Iterable[dict[str, Any]], path: str | Path, baselines: dict[str, float] | None = None
) -> None:
    """Save training and held-out loss (nats a character) against steps, from metrics.jsonl's
    objects, with a line for each baseline."""
    _matplotlib()
    from matplotlib.figure import Figure

    metrics = list(metrics)
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    for name, label in (("train_loss", "training"), ("val_loss", "held out")):
        points = [(m["step"], m[name]) for m in metrics if m.get(name) is not None]
        if points:
            ax.plot(*zip(*points, strict=True), label=label, marker="o" if name[0] == "v" else None)
    for label, loss in (baselines or {}).items():
        ax.axhline(loss, color="0.5", linestyle="--", linewidth=1)
        ax.annotate(label, (1, loss), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    ax.set(xlabel="step", ylabel="loss (nats a character)")
    ax.grid(alpha=0.3)
    ax.legend()
    _save(figure, path, None)
