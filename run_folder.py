"""The folder of a training run: who may write there, and its log."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from command_line import UsageError, say
from maps.run_page import ATLAS, EVIDENCE, read_metrics
from model.checkpoint import replacing

FILES = (EVIDENCE, ATLAS, "attention.html", "metrics.jsonl", "ckpt.pt", "config.toml")
MAPS = "attention"


def _lock(file: TextIO) -> None:
    """Lock an open file until this process ends, however it ends. Raises BlockingIOError, on Windows
    PermissionError, where another process holds it, other OSErrors where the file system has no
    locks."""
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RunFolder:
    """An out_dir that this process alone writes to.

    Raises UsageError where another training writes there, or where the folder holds a run and neither
    `resume` nor `overwrite` is asked for.
    """

    def __init__(self, path: str | Path, resume: bool, overwrite: bool) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "ckpt.pt"
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_file = open(self.path / "lock", "a", encoding="utf-8")  # noqa: SIM115
        try:
            _lock(self._lock_file)
        except (BlockingIOError, PermissionError):
            raise UsageError(
                f"another training is writing to {path}: wait for it or name another --out_dir"
            ) from None
        except OSError as error:
            say(f"{path} cannot be locked ({error.strerror}): let no other training write there")
        held = [name for name in (*FILES, MAPS) if (self.path / name).exists()]
        if overwrite:
            self._clear()
        elif held and not resume:
            going_on = "go on with --resume, " if self.checkpoint.exists() else ""
            raise UsageError(
                f"{path} already holds a run ({', '.join(held)}): {going_on}begin anew with "
                "--overwrite, or name another --out_dir"
            )

    def _clear(self) -> None:
        # The checkpoint and its settings go last: until then the old run can still be resumed.
        if (self.path / MAPS).exists():
            shutil.rmtree(self.path / MAPS)  # what cannot be removed would pass as the new run's
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Put a text file in the folder, whole or not at all."""
        with replacing(self.path / name) as file:
            file.write(text.encode())

    def start_metrics(self, step: int) -> None:
        """Open the log for lines after `step`; lines that a lost part of the run left are dropped,
        as the resumed run writes them again."""
        log = self.path / "metrics.jsonl"
        entries = read_metrics(self.path) if log.exists() else []
        kept = [json.dumps(entry) + "\n" for entry in entries if entry["step"] <= step]
        self.write_text("metrics.jsonl", "".join(kept))
        self._metrics = open(log, "a", encoding="utf-8", newline="\n")  # noqa: SIM115

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl, on disk before a checkpoint of that step can be."""
        self._metrics.write(json.dumps(values, allow_nan=False) + "\n")
        self._metrics.flush()
        os.fsync(self._metrics.fileno())

    def close(self) -> None:
        """Give the folder free."""
        if hasattr(self, "_metrics"):
            self._metrics.close()
        self._lock_file.close()
