"""A map, or a training's losses, as a picture (PNG by matplotlib, which is loaded only here)."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

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
# The page's colours: from paper to ink in one hue, lightness changing evenly, so that eyes which
# don't see colours and black and white prints tell them apart. The scale is the square root of the
# weight, because most weights are small.
COLOURS = ("#f7f7f3", "#d3e3e7", "#8bbbd0", "#3a7cab", "#0d3763")
TICKS = (0, 0.05, 0.2, 0.5, 1)
MARK = "#b23c26"  # the row that was asked for
BLUE = "#2a6897"
CELL = {True: 0.26, False: 0.11}  # inches of a cell: in one large head, in a small one
SMALL = 3.2  # a small head is never wider than these inches


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MapError(
            "pictures need matplotlib: run `pip install -r requirements-dev.txt`"
        ) from None


def chinese_font() -> str | None:
    """The first font here that has Chinese characters, or None."""
    from matplotlib import font_manager

    def best() -> str | None:
        known = {font.name for font in fonts.ttflist}
        return next((name for name in FONTS if name in known), None)

    fonts = font_manager.fontManager
    if best() is None:
        # matplotlib keeps the list of fonts that it made when it was first used: one that was
        # installed since, as our own warning advises, is not in it.
        listed = {font.fname for font in fonts.ttflist}
        for path in set(font_manager.findSystemFonts()) - listed:
            with contextlib.suppress(Exception):  # a broken font is no reason to stop
                fonts.addfont(path)
    return best()


def _save(figure: Any, path: str | Path) -> None:
    """Write a figure whole or not at all."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A character that even the Chinese font lacks becomes a box; that is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    with replacing(path) as file:
        file.write(buffer.getvalue())


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
    _need_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    font = chinese_font()
    layers = range(map.weights.shape[0]) if layer is None else [layer - 1]
    heads = range(map.weights.shape[1]) if head is None else [head - 1]
    single = len(layers) == len(heads) == 1
    side = max(len(map.tokens), 10) * CELL[single]
    side = side if single else min(side, SMALL)
    # What the first font lacks is looked for in the second.
    with matplotlib.rc_context({"font.family": [*([font] if font else []), "DejaVu Sans"]}):
        # A Figure of its own, not pyplot's: nothing keeps it alive after this call.
        size = side * len(heads) + 1, (side + 0.25) * len(layers) + 0.5
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(layers), len(heads), squeeze=False)
        for r, at_layer in enumerate(layers):
            for c, at_head in enumerate(heads):
                ax = axes[r][c]
                image = _draw(ax, map.tokens, map.weights[at_layer, at_head], row, font, side)
                if single:
                    ax.set_xlabel("被看的字 (key)" if font else "position of the key")
                    ax.set_ylabel("正在读的字 (query)" if font else "position of the query")
                else:
                    name = f"{at_layer + 1}.{at_head + 1}"
                    ax.text(0.97, 0.97, name, transform=ax.transAxes, ha="right", va="top")
        every = axes.ravel().tolist()
        bar = figure.colorbar(
            image, ax=every, shrink=0.7, pad=0.02, aspect=30, ticks=TICKS, format="{x:g}"
        )
        bar.set_label("注意力权重 (weight)" if font else "attention weight")
        name = f"layer {layers[0] + 1}, head {heads[0] + 1}" if single else "layer.head"
        loss = f" · held-out loss {map.val_loss:.3f}" if math.isfinite(map.val_loss) else ""
        figure.suptitle(f"{name} · step {map.step}{loss}", fontsize=11)
        note = "a weight is not an explanation"
        figure.supxlabel(f"权重不是解释 · {note}" if font else note, fontsize=8, color="0.4")
        _save(figure, path)
    if font is None:
        print(
            "warning: no Chinese font found, so positions stand in for characters; install one, "
            "for example Noto Sans CJK (Debian: fonts-noto-cjk)",
            file=sys.stderr,
        )


def _draw(
    ax: Any,
    tokens: list[str],
    weights: np.ndarray,
    row: int | None,
    font: str | None,
    side: float,
) -> Any:
    """One head's weights (T, T), `side` inches wide; returns the image, for the colour bar."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.patches import Rectangle

    T = len(tokens)
    colours = LinearSegmentedColormap.from_list("weight", COLOURS)
    later = np.triu(np.ones((T, T), bool), 1)  # left white: what comes later cannot be seen
    seen = np.ma.masked_array(weights, later)
    image = ax.imshow(seen, cmap=colours, norm=PowerNorm(0.5, vmin=0, vmax=1))
    ax.spines[["top", "right"]].set_visible(False)
    points = side / T * 72  # of a cell
    at = range(T)
    fontsize = min(points * (0.8 if font else 0.6), 12)
    if points < 6:  # too narrow for every character: those that begin a line of verse
        at = [i for i in at if i == 0 or (i > 1 and not tokens[i - 1].isalpha())]
        fontsize = 7
    labels = [shown(tokens[i]) if font else str(i) for i in at]
    ax.set_xticks(at, labels, fontsize=fontsize)
    ax.set_yticks(at, labels, fontsize=fontsize)
    ax.tick_params(length=0, pad=1.5)
    if row is not None:
        frame = Rectangle((-0.5, row - 0.5), row + 1, 1, fill=False, edgecolor=MARK, linewidth=1.3)
        frame.set_clip_on(False)
        ax.add_patch(frame)
        for tick, i in zip(ax.get_yticklabels(), at, strict=True):
            if i == row:
                tick.set_color(MARK)
    return image


def draw_loss(
    metrics: Iterable[dict[str, Any]], path: str | Path, baselines: dict[str, float] | None = None
) -> None:
    """Save training and held-out loss (nats a character) against steps, from metrics.jsonl's
    objects, with a line for each baseline."""
    _need_matplotlib()
    from matplotlib.figure import Figure

    metrics = list(metrics)
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    for name, label, style in (
        ("train_loss", "training", {"color": "0.65", "linewidth": 1.2}),
        ("val_loss", "held out", {"color": BLUE, "marker": "o", "markersize": 4}),
    ):
        points = [(m["step"], m[name]) for m in metrics if m.get(name) is not None]
        if points:
            ax.plot(*zip(*points, strict=True), label=label, **style)
    for label, loss in (baselines or {}).items():
        ax.axhline(loss, color="0.5", linestyle="--", linewidth=1)
        ax.annotate(
            label,
            (0.99, loss),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    ax.set(xlabel="step", ylabel="loss (nats a character)")
    ax.grid(alpha=0.3)
    ax.legend()
    _save(figure, path)
