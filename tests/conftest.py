"""What the tests share: a tiny corpus, a tiny trained run, and ways to start the scripts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch

from data.corpus import POEMS

ROOT = Path(__file__).parent.parent
PROBE = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"
TINY = {  # a training of less than a second
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "max_iters": 20,
    "batch_size": 512,
    "warmup_iters": 2,
    "eval_interval": 10,
    "log_interval": 5,
    "eval_batches": 100,
    "dtype": "float32",
    "device": "cpu",
}

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell script that starts the tests in the background has Ctrl-C ignored, and a process hands
    # that down to the scripts whose answer to Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    code: int
    out: str
    err: str


def flags(**settings: object) -> list[str]:
    """Settings as flags: n_layer=2 -> --n_layer=2; a list gives its values behind the flag."""
    found: list[str] = []
    for name, value in settings.items():
        many = isinstance(value, (list, tuple))
        found += [f"--{name}", *map(str, value)] if many else [f"--{name}={value}"]
    return found


def run_script(name: str, *arguments: object) -> Outcome:
    """Run a script as `python NAME ARGUMENTS` would, but within this process, which spares the
    seconds that a new one needs to import torch."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    argv = [str(ROOT / name), *map(str, arguments)]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", argv),
        ):
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    finally:
        torch.set_num_threads(threads)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(stream.encoding))
    return Outcome(code, *texts)


def as_typed(argument: object) -> str | bytes:
    """An argument as a terminal in UTF-8 hands it over, whatever locale the tests run in."""
    text = str(argument)
    return text if os.name == "nt" else text.encode("utf-8", "surrogateescape")


def start_script(name: str, *arguments: object, **options) -> subprocess.Popen:
    """Start `python NAME ARGUMENTS` as a process of its own, on one thread."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / name), *map(as_typed, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=env | options.pop("env", {}),
        **options,
    )


def finish(process: subprocess.Popen, seconds: float = 120) -> Outcome:
    """Wait for a process that `start_script` started."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Outcome(process.returncode, out, err)


def metrics(out_dir: Path, times: bool = False) -> list[dict]:
    """The lines of a run's log, without what the clock says unless `times`."""
    lines = (out_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    clock = () if times else ("elapsed_s", "tokens_per_s")
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


def same(a: object, b: object) -> bool:
    """Whether two checkpoints' values, tensors included, are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of some 340 poems of all four forms, with every character of PROBE."""
    poems = POEMS.read_text(encoding="utf-8").splitlines()
    chosen = [poem for i, poem in enumerate(poems) if i % 100 == 0 or "疑是地上霜" in poem]
    path = tmp_path_factory.mktemp("corpus") / "poems.txt"
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8", newline="\n")
    return path


@pytest.fixture(scope="session")
def tiny_flags(tiny_corpus: Path) -> list[str]:
    """Flags of a tiny training on the tiny corpus; out_dir and what a test changes come behind."""
    return flags(data=tiny_corpus, probes=[PROBE], **TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_flags: list[str]) -> Path:
    """The out_dir of a finished tiny training: read only, as all tests share it."""
    out_dir = tmp_path_factory.mktemp("runs") / "tiny"
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={out_dir}")
    assert outcome.code == 0, outcome.err
    return out_dir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the test's own with a space and Chinese characters in its path, where the system's
    locale can name it."""
    try:
        folder = tmp_path / os.fsdecode(os.fsencode("我的 诗"))
    except UnicodeEncodeError:  # LC_ALL=C without UTF-8 mode
        folder = tmp_path / "my poems"
    folder.mkdir()
    return folder


@pytest.fixture
def threads() -> Iterator[None]:
    """Lets a test change torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
