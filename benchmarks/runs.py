"""Trainings in fresh processes, and what their logs say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import ROOT
from command_line import UsageError


@dataclass
class Log:
    """A training's metrics.jsonl on the clock of training alone: the time of its steps with making
    batches, without evaluations, maps, checkpoints and starting."""

    seconds: list[float] = field(default_factory=list)  # at each evaluation
    losses: list[float] = field(default_factory=list)  # held-out, nats a character
    speeds: list[float] = field(default_factory=list)  # characters/s of each line's steps
    total_s: float = 0.0
    steps: int = 0

    @classmethod
    def read(cls, path: Path) -> Log:
        """The log of a finished training, ours or the reference's."""
        log, tokens = cls(), 0
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry["tokens_per_s"]:
                log.total_s += (entry["tokens"] - tokens) / entry["tokens_per_s"]
                log.speeds.append(entry["tokens_per_s"])
            if entry["val_loss"] is not None:
                log.seconds.append(log.total_s)
                log.losses.append(entry["val_loss"])
            tokens, log.steps = entry["tokens"], entry["step"]
        return log

    def time_to(self, loss: float) -> float | None:
        """Seconds until the held-out loss first is `loss` or less, on straight lines between
        evaluations; None where it never is."""
        for i, reached in enumerate(self.losses):
            if reached <= loss:
                if i == 0:
                    return self.seconds[0]
                share = (self.losses[i - 1] - loss) / (self.losses[i - 1] - reached)
                return self.seconds[i - 1] + share * (self.seconds[i] - self.seconds[i - 1])
        return None


@dataclass
class Memory:
    """Main memory of a process in bytes; None and empty where the system does not say."""

    peak: int | None = None
    samples: list[int] = field(default_factory=list)  # resident set, evenly over its life

    def look(self, pid: int | str) -> None:
        """Note what a process holds now (Linux alone; it is silent elsewhere, and when it ended)."""
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            self.peak, resident = (
                1024 * int(status.partition(name)[2].split()[0]) for name in ("VmHWM:", "VmRSS:")
            )
        except (OSError, IndexError):
            return
        self.samples.append(resident)

    def rise(self) -> int | None:
        """How much higher it came in its second half than in its first."""
        half = len(self.samples) // 2
        if not half:
            return None
        return max(self.samples[half:]) - max(self.samples[:half])


def command(script: str, flags: dict[str, object]) -> list[str]:
    """The command line of train.py or of a module of ours."""
    start = [script] if script.endswith(".py") else ["-m", script]
    return [sys.executable, *start, *(f"--{k}={v}" for k, v in flags.items())]


def execute(line: list[str], interval: float = 0.5, cwd: Path = ROOT) -> Memory:
    """Run a command to its end, watching its memory. Raises UsageError with its last words where it
    fails."""
    memory, words = Memory(), []
    process = subprocess.Popen(
        line, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )
    reader = threading.Thread(target=lambda: words.extend(process.stderr))
    reader.start()
    try:
        while process.poll() is None:
            memory.look(process.pid)
            time.sleep(interval)
    finally:
        process.kill()  # where the user stopped us; it does nothing to a process that ended
        process.wait()
    reader.join()
    if process.returncode:
        last = words[-1].strip() if words else "without a word"
        raise UsageError(f"`{' '.join(line[1:])}` failed: {last}")
    return memory


def train(out_dir: Path, **settings: object) -> tuple[Log, Memory]:
    """Train with train.py and its default config, but for `settings`."""
    flags = {"out_dir": out_dir, "eval_batches": 1_000_000} | settings
    memory = execute([*command("train.py", flags), "--overwrite"])
    return Log.read(out_dir / "metrics.jsonl"), memory


def reference(out_dir: Path, **settings: object) -> tuple[Log, Memory]:
    """Train the reference recipe, see reference.py."""
    memory = execute(command("benchmarks.reference", {"out_dir": out_dir} | settings))
    return Log.read(out_dir / "metrics.jsonl"), memory


def seconds_to_first_step(out_dir: Path) -> float:
    """From starting `python train.py` until its log has the first step."""
    log = out_dir / "metrics.jsonl"
    log.unlink(missing_ok=True)
    line = [*command("train.py", {"out_dir": out_dir, "log_interval": 1}), "--overwrite"]
    started = time.perf_counter()
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The first line is the evaluation before any training, the second is the first step's.
        while not log.exists() or log.read_bytes().count(b"\n") < 2:
            if process.poll() is not None:
                raise UsageError("`train.py` ended before its first step: run it to see why")
            time.sleep(0.01)
        return time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()
