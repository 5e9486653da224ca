"""What the benchmarks share: packages they need, tables, and the file of results."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import torch

from command_line import UsageError

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).with_name("RESULTS.md")
SIZES = {"n_layer": 4, "n_head": 4, "n_embd": 128}  # the shape at which peers are compared


def require(*packages: str) -> None:
    """Raise UsageError with the command that installs them where packages are missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} not installed: "
            "run `pip install -r benchmarks/requirements.txt`"
        )


def positive(text: str) -> int:
    """A count given as a flag, for argparse."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text}")
    return count


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers or short."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def machine() -> str:
    """One line on the machine and the versions that a result belongs to."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else name
    return (
        f"{date.today()}, {name}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads"
    )


def publish(name: str, text: str, keep: bool, path: Path = RESULTS) -> None:
    """Print a result and, with `keep`, put it in the results' file in place of the last one of that
    name; what stands between the blocks is kept by hand and stays."""
    text = f"{machine()}\n\n{text}"
    print(text)
    if not keep:
        return
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        after = rest.split(end, 1)[1]
    else:
        before, after = f"{old}\n## {name.capitalize()}\n\n", ""
    path.write_text(
        f"{before}{begin}\n{text}\n\n{end}{after}".lstrip(), encoding="utf-8", newline="\n"
    )
