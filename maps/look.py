"""A map in the terminal: what one character looks at in each head, or one head as shaded blocks."""

from __future__ import annotations

import numpy as np

from data.vocabulary import BOUNDARY
from maps.capture import AttentionMap, MapError
from maps.terminal import pad, table, width

START = "始"  # how the start of the text is shown
SHADES = "·░▒▓█"  # weights up to 0.02, 0.1, 0.3, 0.6 and above
BAR = 20  # columns of a bar that stands for weight 1


def shown(token: str) -> str:
    """A character as a reader sees it."""
    return START if token == BOUNDARY else token


def position_of(map: AttentionMap, query: str) -> int:
    """Where a character stands in the text for the last time. Raises MapError where it does not."""
    text = "".join(map.tokens[1:])
    at = text.rfind(query)
    if len(query) != 1 or at < 0:
        raise MapError(f"the query {query} is not one character of the text {text}: choose another")
    return at + 1


def check_head(n_layer: int, n_head: int, layer: int | None, head: int | None) -> None:
    """Raise MapError unless layer and head, counted from 1, are in the model (None: any)."""
    for name, number, count in (("layer", layer, n_layer), ("head", head, n_head)):
        if number is not None and not 1 <= number <= count:
            raise MapError(f"{name} {number} is not in this model: choose 1 to {count}")


def look_at(map: AttentionMap, query: str, most: int = 4) -> str:
    """A table: for each head the characters that the last `query` in the text looks at most, with
    weight, the share 1 / (i + 1) of a head without preference, and a bar; a rule opens each layer."""
    i = position_of(map, query)
    uniform = 1 / (i + 1)
    head = ["层.头", "看 (key)", "", "位置", "权重", "均分", "×均分"]
    rows = []
    n_layer, n_head = map.weights.shape[:2]
    most = min(most, i + 1)
    for layer in range(n_layer):
        for number in range(n_head):
            weights = map.weights[layer, number, i, : i + 1]
            for rank, j in enumerate(np.argsort(-weights, kind="stable")[:most]):
                rows.append(
                    [
                        f"{layer + 1}.{number + 1}" if rank == 0 else "",
                        shown(map.tokens[j]),
                        "█" * round(float(weights[j]) * BAR),
                        str(j),
                        f"{weights[j]:.3f}",
                        f"{uniform:.3f}",
                        f"{weights[j] / uniform:.1f}",
                    ]
                )
    title = f"{query}（第 {i} 字）在每个头里最看重的字；{START} 是开头；权重不是解释"
    heading, *lines = table(head, rows, left=3).split("\n")
    rule = "─" * width(heading)
    for layer in reversed(range(n_layer)):
        lines.insert(layer * n_head * most, rule)
    return "\n".join([title, heading, *lines])


def draw_head(map: AttentionMap, layer: int, head: int) -> str:
    """One head (counted from 1) as shaded blocks: rows look, columns are looked at."""
    check_head(*map.weights.shape[:2], layer, head)
    weights = map.weights[layer - 1, head - 1]
    edges = np.array([0.02, 0.1, 0.3, 0.6])
    lines = [f"第 {layer} 层第 {head} 头；行：正在读的字 (query)，列：被看的字 (key)"]
    lines.append("    " + "".join(pad(shown(token), 2) for token in map.tokens))
    for i, token in enumerate(map.tokens):
        cells = (SHADES[np.searchsorted(edges, w)] * 2 for w in weights[i, : i + 1])
        lines.append(f"{pad(shown(token), 2)}  " + "".join(cells))
    legend = ["≤0.02", "≤0.1", "≤0.3", "≤0.6", ">0.6"]
    lines.append("  ".join(f"{s} {text}" for s, text in zip(SHADES, legend, strict=True)))
    return "\n".join(lines)
