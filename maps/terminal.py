"""Text for a terminal, where a Chinese character is two columns wide."""

import unicodedata
from collections.abc import Sequence


def width(text: str) -> int:
    """Columns that the text takes: two for wide characters, none for combining marks."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def pad(text: str, columns: int, right: bool = False) -> str:
    """The text filled with spaces to `columns`; `right` sets it to the right edge."""
    space = " " * max(columns - width(text), 0)
    return space + text if right else text + space


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows under their heads, columns as wide as their widest cell.

    The first `left` columns are set to the left, the others (numbers) to the right.
    """
    lines = [head, *rows]
    columns = [max(width(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(pad(cell, columns[at], right=at >= left) for at, cell in enumerate(line)).rstrip()
        for line in lines
    )
