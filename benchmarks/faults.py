"""Kill trainings at random moments and resume them: what is lost? (python -m benchmarks faults)

Each round is one training of a tiny model that evaluates, saves maps and a checkpoint every two
steps. It gets SIGKILL again and again (TerminateProcess on Windows), half of the time as soon as it
is seen writing a file, and is resumed until it reaches its end. After every kill all that lies in the folder is
read and checked; at the end checkpoint, log and maps must equal those of a training that nobody
disturbed, to the last bit.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.common import positive, publish, table
from command_line import Parser, say
from data.corpus import POEMS
from maps.capture import MapError, load_map, map_path
from model.checkpoint import CheckpointError, load_checkpoint

PROBES = ("床前明月光，疑是地上霜。", "春眠不觉晓，处处闻啼鸟。")
STEPS, EVAL_INTERVAL, LOG_INTERVAL = 20, 2, 1
SETTINGS = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "dropout": 0.1,  # the random state has to survive too
    "batch_size": 256,
    "max_iters": STEPS,
    "eval_interval": EVAL_INTERVAL,
    "log_interval": LOG_INTERVAL,
    "eval_batches": 2,
    "device": "cpu",
    "dtype": "float32",
}
CLOCK = ("elapsed_s", "tokens_per_s")  # what may differ between two runs


class LossError(Exception):
    """Something of a training was lost or spoilt."""


@dataclass
class Tally:
    """What the kills hit."""

    kills: int = 0
    rounds: int = 0
    moments: Counter = field(default_factory=Counter)


def train_in_child(argv: list[str]) -> None:
    """The body of a child process: one training, on one thread and in silence."""
    torch.set_num_threads(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere
        import tqdm

        import train

        tqdm.tqdm.set_lock(threading.RLock())  # its own lock would outlive a killed process
        code = train.main(argv)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.exit(code)


class Trainer:
    """Starts trainings in child processes. Where the system can fork they start from a process that
    has imported torch, which spares each the seconds of the import."""

    def __init__(self, folder: Path) -> None:
        methods = multiprocessing.get_all_start_methods()
        method = "forkserver" if "forkserver" in methods else "spawn"
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(["train", "torch._dynamo"])
        poems = POEMS.read_text(encoding="utf-8").splitlines()
        chosen = [p for i, p in enumerate(poems) if i % 100 == 0 or set(p) & set("眠啼晓鸟疑")]
        self._data = folder / "poems.txt"
        self._data.write_text("\n".join(chosen[:500]), encoding="utf-8", newline="\n")

    def start(self, out_dir: Path) -> multiprocessing.Process:
        """Start or resume the training in `out_dir`."""
        settings = SETTINGS | {"data": self._data, "out_dir": out_dir}
        argv = [f"--{name}={value}" for name, value in settings.items()]
        argv += ["--probes", *PROBES]
        # A training that died before its first checkpoint has nothing to go on from.
        argv += ["--resume" if (out_dir / "ckpt.pt").exists() else "--overwrite"]
        process = self._context.Process(target=train_in_child, args=(argv,))
        process.start()
        return process


def read_log(out_dir: Path) -> list[dict]:
    """The lines of metrics.jsonl. Raises LossError where one is no JSON."""
    path = out_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise LossError(f"metrics.jsonl has a broken line: {error}") from None


def dated(out_dir: Path, pattern: str) -> set[tuple[Path, int]]:
    """The files that fit `pattern`, each with the time of its last change."""
    found = set()
    with contextlib.suppress(FileNotFoundError):  # a folder removed just now, by --overwrite
        for path in out_dir.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # renamed just now
                found.add((path, path.stat().st_mtime_ns))
    return found


def check(out_dir: Path, before: set[tuple[Path, int]]) -> tuple[int, str]:
    """Read all that a killed training left; returns the step of its checkpoint (-1: none yet) and
    the moment at which it was hit, judged by the files that were not there `before` it started.
    Raises LossError or what the readers raise."""
    checkpoint = out_dir / "ckpt.pt"
    step = load_checkpoint(checkpoint)["step"] if checkpoint.exists() else -1
    steps = [line["step"] for line in read_log(out_dir)]
    expected = [0, *range(LOG_INTERVAL, STEPS + 1, LOG_INTERVAL)]
    if steps != expected[: len(steps)]:
        raise LossError(f"metrics.jsonl has double or missing steps: {steps}")
    if step >= 0 and step not in steps:
        raise LossError(f"metrics.jsonl ends at {steps[-1:]}, before the checkpoint of step {step}")
    for saved in range(0, step + 1, EVAL_INTERVAL):
        for probe in range(len(PROBES)):
            if not map_path(out_dir, probe, saved).exists():
                raise LossError(f"the map of probe {probe} at step {saved} is lost")
    steps_of_maps = {path: load_map(path).step for path in out_dir.glob("attention/*/*.npz")}
    new = [path for path, _ in dated(out_dir, "**/*") - before]
    newest = max((steps_of_maps[path] for path in new if path in steps_of_maps), default=-1)
    unfinished = [path.name for path in new if path.suffix == ".tmp"]
    if "ckpt.pt.tmp" in unfinished:
        moment = "writing the checkpoint"
    elif unfinished:
        moment = "writing a map or the log"
    elif newest > step or (steps and steps[-1] % EVAL_INTERVAL == 0 and steps[-1] > step):
        moment = "between map, log and checkpoint"
    elif step < 0:
        moment = "before the first checkpoint"
    else:
        moment = "starting, training or evaluating"
    return step, moment


def same(a: object, b: object) -> bool:
    """Equal to the last bit, tensors within dicts and lists included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def compare(out_dir: Path, reference: Path) -> None:
    """Raise LossError where a finished training differs from the undisturbed one."""
    states = []
    for folder in (out_dir, reference):
        state = load_checkpoint(folder / "ckpt.pt")
        state["config"] = state["config"] | {"out_dir": ""}
        states.append({key: value for key, value in state.items() if key not in CLOCK})
    if not same(*states):
        differing = [key for key in states[0] if not same(states[0][key], states[1].get(key))]
        raise LossError(f"the final checkpoint differs from the undisturbed one in {differing}")
    logs = [
        [{k: v for k, v in line.items() if k not in CLOCK} for line in read_log(folder)]
        for folder in (out_dir, reference)
    ]
    if logs[0] != logs[1]:
        raise LossError("metrics.jsonl differs from the undisturbed one")
    names = [
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for folder in (out_dir, reference)
    ]
    if names[0] != names[1]:
        raise LossError(f"other files are left: {sorted(set(names[0]) ^ set(names[1]))}")
    for name in names[1]:
        if name.endswith(".npz"):
            ours, theirs = load_map(out_dir / name), load_map(reference / name)
            if (ours.weights != theirs.weights).any() or ours.val_loss != theirs.val_loss:
                raise LossError(f"{name} differs from the undisturbed one")


def wait_for_writing(process: multiprocessing.Process, out_dir: Path, pattern: str) -> None:
    """Wait until the training writes a file whose temporary name fits `pattern`, or ends."""
    left = dated(out_dir, pattern)  # by an earlier kill: it says nothing about this process
    while process.is_alive() and dated(out_dir, pattern) <= left:
        time.sleep(0.0002)


def kill_and_resume(folder: Path, kills: int, seed: int = 0, progress=None) -> Tally:
    """Kill trainings in `folder` at `kills` random moments. Raises LossError where anything is
    lost; `progress(number of kills)` is called after each."""
    trainer = Trainer(folder)
    reference = folder / "undisturbed"
    process = trainer.start(reference)  # the first also starts the process that imports torch
    process.join()
    if process.exitcode:
        raise LossError(f"the undisturbed training ended with exit code {process.exitcode}")
    started = time.perf_counter()
    again = folder / "round_0"
    process = trainer.start(again)
    process.join()
    duration = time.perf_counter() - started
    compare(again, reference)  # two undisturbed trainings are equal, else nothing follows
    chance, tally = random.Random(seed), Tally()
    while tally.kills < kills:
        tally.rounds += 1
        out_dir, reached = folder / f"round_{tally.rounds}", -1
        while True:
            before = dated(out_dir, "**/*")
            process = trainer.start(out_dir)
            if tally.kills < kills:
                process.join(chance.uniform(0, 0.7 * duration))
                if chance.random() < 0.5:
                    wait_for_writing(process, out_dir, chance.choice(["ckpt.pt.tmp", "**/*.tmp"]))
                process.kill()
            process.join()
            if process.exitcode == 0:
                break
            if process.exitcode > 0:
                raise LossError(f"a resumed training ended with exit code {process.exitcode}")
            tally.kills += 1
            step, moment = check(out_dir, before)
            if step < reached:
                raise LossError(f"the checkpoint fell back from step {reached} to {step}")
            reached = step
            tally.moments[moment] += 1
            if progress:
                progress(tally.kills)
        compare(out_dir, reference)
    return tally


def main(argv: list[str]) -> int:
    """Kill, resume, compare; returns the exit code."""
    parser = Parser(prog="-m benchmarks faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=positive, default=200, help="how often to kill")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--quick", action="store_true", help="20 kills; keep nothing")
    args = parser.parse_args(argv)
    kills = 20 if args.quick else args.kills

    def progress(number: int) -> None:
        if number % 10 == 0:
            say(f"{number} of {kills} kills")

    with tempfile.TemporaryDirectory() as folder:
        try:
            tally = kill_and_resume(Path(folder), kills, args.seed, progress)
        except (LossError, CheckpointError, MapError) as error:
            print(f"lost: {error}", file=sys.stderr)
            return 1
    rows = [[moment, count] for moment, count in tally.moments.most_common()]
    text = (
        f"{tally.kills} kills in {tally.rounds} trainings of {STEPS} steps (seed {args.seed}): no "
        "unreadable checkpoint, no lost map, no double or missing line; final checkpoints, logs and "
        "maps equal those of an undisturbed training to the last bit.\n\n"
        f"{table(['killed while', 'kills'], [*rows, ['all', tally.kills]])}"
    )
    publish("faults", text, keep=not args.quick)
    return 0
