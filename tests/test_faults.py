"""Nothing is lost: kills, signals, full disks, two trainings in one folder, losses that blow up."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time

import pytest
import torch

import run_folder
from benchmarks.faults import kill_and_resume
from data.batches import Batches
from maps.run_page import ATLAS, EVIDENCE
from model import checkpoint as checkpoint_module
from model.checkpoint import load_checkpoint, save_checkpoint
from model.optim import AdamW
from run_folder import RunFolder
from tests.conftest import Outcome, finish, metrics, run_script, start_script

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of the finished tiny training, to do harm to."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def contents(folder) -> dict[str, bytes]:
    """All files but the lock, which holds nothing."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refused(outcome, says: str) -> bool:
    """Whether the script ended as bad use must: one line that says what to do, exit code 2."""
    lines = outcome.err.splitlines()
    assert outcome.code == 2, outcome
    assert lines[-1].startswith("train.py: error: ") and says in lines[-1], lines
    assert "Traceback" not in outcome.err and not outcome.out
    return True


def test_ten_kills_lose_nothing(tmp_path):
    tally = kill_and_resume(tmp_path, kills=10, seed=time.time_ns())
    assert tally.kills == 10 and sum(tally.moments.values()) == 10
    assert not multiprocessing.active_children()


# Signals


def wait_for_step(out_dir, step, process, seconds=60):
    for _ in range(int(seconds / 0.02)):
        if (out_dir / "ckpt.pt").exists() and metrics(out_dir)[-1]["step"] >= step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise TimeoutError


@posix
def test_signals_save_first_and_a_living_training_keeps_others_out(tiny_flags, tmp_path):
    endless = [*tiny_flags, "--max_iters=100000", "--eval_interval=50000", "--log_interval=1"]
    folders = {signal.SIGINT: tmp_path / "int", signal.SIGTERM: tmp_path / "term"}
    processes = {
        number: start_script("train.py", *endless, f"--out_dir={folder}")
        for number, folder in folders.items()
    }
    try:
        for number, folder in folders.items():
            wait_for_step(folder, 3, processes[number])
        for mode in ("--resume", "--overwrite"):
            second = run_script("train.py", *endless, f"--out_dir={folders[signal.SIGINT]}", mode)
            assert refused(second, "another training is writing to")
        for number, process in processes.items():
            process.send_signal(number)
        outcomes = {number: finish(process) for number, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    for number, folder in folders.items():
        outcome = outcomes[number]
        assert outcome.code == 128 + number and not outcome.out
        step = load_checkpoint(folder / "ckpt.pt")["step"]
        assert metrics(folder)[-1]["step"] == step >= 3
        assert f"stopped at step {step}, saved in {folder / 'ckpt.pt'}" in outcome.err
        assert "Traceback" not in outcome.err and not list(folder.rglob("*.tmp"))


def test_a_second_ctrl_c_stops_at_once_and_the_former_checkpoint_loads(
    tiny_flags, tmp_path, monkeypatch
):
    shuffled = Batches.shuffled

    def interrupted(self, seed, step):
        if step == 12:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return shuffled(self, seed, step)

    monkeypatch.setattr(Batches, "shuffled", interrupted)
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={tmp_path}")
    assert outcome.code == 130 and outcome.err.endswith("train.py: interrupted\n")
    assert load_checkpoint(tmp_path / "ckpt.pt")["step"] == 10
    assert run_script("train.py", "--resume", f"--out_dir={tmp_path}").code == 130  # at 12 again
    monkeypatch.undo()
    assert run_script("train.py", "--resume", f"--out_dir={tmp_path}").code == 0
    assert [line["step"] for line in metrics(tmp_path)] == [0, 5, 10, 15, 20]


def test_a_second_ctrl_c_within_a_save_keeps_the_former_checkpoint(
    tiny_flags, tmp_path, monkeypatch
):
    replace = os.replace

    def interrupted(source, target):
        if str(target).endswith("ckpt.pt") and os.path.exists(target):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(checkpoint_module.os, "replace", interrupted)
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={tmp_path}")
    assert outcome.code == 130
    assert load_checkpoint(tmp_path / "ckpt.pt")["step"] == 0
    assert not list(tmp_path.rglob("*.tmp"))


@posix
@pytest.mark.parametrize("script", ["train.py", "sample.py", "view.py", "attention.py"])
def test_ctrl_c_while_torch_is_imported_shows_no_traceback(tmp_path, script):
    slow = tmp_path / "torch.py"  # stands for the import that takes seconds
    slow.write_text("print('now', flush=True)\nimport time\ntime.sleep(60)", encoding="utf-8")
    process = start_script(script, env={"PYTHONPATH": str(tmp_path)})
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    if script == "attention.py":
        assert finish(process) == Outcome(130, "", "attention.py: interrupted\n")
    else:
        assert finish(process) == Outcome(-signal.SIGINT, "", "")  # a shell says 130


# A disk that takes no more


@posix
@pytest.mark.parametrize(
    ("limit", "file"),
    [(100, "metrics.jsonl"), (1500, "step_000030.npz"), (20_000, "ckpt.pt")],
)
def test_a_full_disk_leaves_the_former_files(run, limit, file):
    """RLIMIT_FSIZE: the system refuses to let a file grow beyond it, as a full disk would."""
    import resource

    before = contents(run)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
    try:
        outcome = run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert refused(outcome, f"{file}: File too large; check the path, its rights and the disk's")
    after = contents(run)
    assert not [name for name in after if name.endswith(".tmp")]
    assert after["ckpt.pt"] == before["ckpt.pt"]
    assert after["metrics.jsonl"].startswith(before["metrics.jsonl"])
    for name, data in before.items():
        if name.endswith(".npz"):
            assert after[name] == data
    # With room again it goes on as if nothing had been.
    assert run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30").code == 0
    assert [line["step"] for line in metrics(run)] == [0, 5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("file", ["ckpt.pt", "step_000030.npz", "metrics.jsonl"])
def test_a_folder_that_became_read_only(run, monkeypatch, file):
    before = contents(run)
    replace = os.replace

    def forbidden(source, target):
        if str(target).endswith(file):
            raise PermissionError(13, "Permission denied", str(target))
        replace(source, target)

    monkeypatch.setattr(checkpoint_module.os, "replace", forbidden)
    outcome = run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30")
    assert refused(outcome, f"{file}: Permission denied; check the path, its rights")
    after = contents(run)
    assert after["ckpt.pt"] == before["ckpt.pt"]
    assert not [name for name in after if name.endswith(".tmp")]


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(tiny_flags, tmp_path):
    tmp_path.chmod(0o555)
    try:
        outcome = run_script("train.py", *tiny_flags, f"--out_dir={tmp_path / 'run'}")
    finally:
        tmp_path.chmod(0o755)
    assert refused(outcome, f"cannot use {tmp_path / 'run'}: Permission denied")


# One folder, one training


def test_a_lock_of_a_dead_process_does_not_block(tiny_flags, tmp_path):
    (tmp_path / "lock").write_text("left by a process that is gone", encoding="utf-8")
    assert run_script("train.py", *tiny_flags, f"--out_dir={tmp_path}", "--max_iters=1").code == 0


def test_a_folder_is_free_again_when_its_training_ends(tmp_path):
    folder = RunFolder(tmp_path, resume=False, overwrite=False)
    with pytest.raises(ValueError, match="another training"):
        RunFolder(tmp_path, resume=False, overwrite=False)
    folder.close()
    RunFolder(tmp_path, resume=False, overwrite=False).close()


@posix
def test_a_file_system_without_locks_is_remarked_upon(tmp_path, monkeypatch, capsys):
    def flock(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    RunFolder(tmp_path, resume=False, overwrite=False).close()
    assert "cannot be locked (Function not implemented)" in capsys.readouterr().err


def test_another_run_in_the_folder_is_neither_mixed_nor_lost(run, tiny_flags):
    before = contents(run)
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}")
    assert refused(outcome, "already holds a run") and contents(run) == before
    assert "go on with --resume, begin anew with --overwrite" in outcome.err
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}", "--resume", "--overwrite")
    assert refused(outcome, "exclude each other") and contents(run) == before
    for name in (EVIDENCE, ATLAS):  # as view.py leaves them
        (run / name).write_text("{}", encoding="utf-8")
    few = ["--max_iters=2", "--probes", "春眠不觉晓"]
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}", "--overwrite", *few)
    assert outcome.code == 0
    assert load_checkpoint(run / "ckpt.pt")["step"] == 2
    assert not (run / EVIDENCE).exists() and not (run / ATLAS).exists()
    assert sorted(name for name in contents(run) if "npz" in name) == [
        "attention/0/step_000000.npz",
        "attention/0/step_000002.npz",
    ]


def test_overwriting_stopped_half_way_leaves_a_run_that_goes_on(run, tiny_flags, monkeypatch):
    def stopped(path, missing_ok=False):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder.Path, "unlink", stopped)
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}", "--overwrite")
    monkeypatch.undo()
    assert outcome.code == 130 and not (run / "attention").exists()
    assert run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=21").code == 0


def test_maps_that_cannot_be_removed_are_not_mixed_with_a_new_runs(run, tiny_flags):
    shutil.rmtree(run / "attention")
    (run / "attention").write_text("no folder", encoding="utf-8")
    before = contents(run)
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}", "--overwrite")
    assert refused(outcome, "attention") and contents(run) == before


def test_a_training_made_longer_goes_on_as_far_after_a_stop(run, monkeypatch):
    shuffled = Batches.shuffled

    def interrupted(self, seed, step):
        if step == 23:
            signal.raise_signal(signal.SIGINT)
        return shuffled(self, seed, step)

    monkeypatch.setattr(Batches, "shuffled", interrupted)
    assert run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=27").code == 130
    monkeypatch.undo()
    outcome = run_script("train.py", "--resume", f"--out_dir={run}")
    assert outcome.out.splitlines()[-1].startswith("final: step=27 ")


@pytest.mark.parametrize("file", ["config.toml", "metrics.jsonl"])
def test_a_run_without_a_checkpoint_can_only_begin_anew(run, tiny_flags, file):
    (run / "ckpt.pt").unlink()
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}")
    assert refused(outcome, "begin anew with --overwrite") and "--resume" not in outcome.err
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={run}", "--resume")
    assert refused(outcome, "no checkpoint")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--n_embd=32"], "n_embd (was 16, is 32)"),
        (["--n_layer=1", "--seed=4"], "n_layer (was 2, is 1), seed (was 1337, is 4)"),
        (["--fold=3"], "fold (was 0, is 3)"),
        (["--muon_momentum=0.95"], "muon_momentum (was 0.9, is 0.95)"),
        (["--probes", "春眠不觉晓"], "probes"),
        (["--data=data/poems.txt"], "text in data"),
        (["--learning_rate=0.1"], "learning_rate"),
        (["--max_iters=19"], "the checkpoint is at step 20, max_iters is 19: take a larger"),
    ],
)
def test_going_on_with_other_settings_is_refused(run, change, says):
    before = contents(run)
    outcome = run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30", *change)
    assert refused(outcome, says)
    assert contents(run) == before


def test_a_stop_is_not_made_the_end_without_a_last_look(run, monkeypatch):
    save_checkpoint(run / "ckpt.pt", load_checkpoint(run / "ckpt.pt") | {"val_step": 10})
    outcome = run_script("train.py", "--resume", f"--out_dir={run}")
    assert refused(outcome, "the checkpoint is at step 20, max_iters is 20: take a larger")


# A log cut off, a loss that blows up


@pytest.mark.parametrize("tail", ['{"step": 25, "train', "\0\0\0\0", "\n\n", "[1]\n"])
def test_a_log_cut_off_by_a_power_cut_is_mended(run, tail):
    with open(run / "metrics.jsonl", "a", encoding="utf-8", newline="\n") as log:
        log.write(tail)
    assert run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30").code == 0
    assert [line["step"] for line in metrics(run)] == [0, 5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("interval", [1, 1000])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(
    tiny_flags, tmp_path, interval
):
    rates = ["--learning_rate=3e38", "--muon_learning_rate=3e38", "--grad_clip=0"]
    arguments = [*tiny_flags, *rates, f"--eval_interval={interval}"]
    outcome = run_script("train.py", *arguments, f"--out_dir={tmp_path}")
    assert outcome.code == 2 and "Traceback" not in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith("train.py: error: the loss is not finite at step ")
    assert "lower --learning_rate" in last and "checkpoint is kept" in last
    state = load_checkpoint(tmp_path / "ckpt.pt")
    assert all(values.isfinite().all() for values in state["model"].values())
    for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert not list(tmp_path.rglob("*.tmp"))


def test_spoilt_weights_are_not_saved_on_the_way_out(run, monkeypatch):
    """Ctrl-C right after a step that spoilt the weights: the good checkpoint stays."""
    before = contents(run)["ckpt.pt"]
    shuffled, step_of = Batches.shuffled, AdamW.step

    def interrupted(self, seed, step):
        signal.raise_signal(signal.SIGINT)
        return shuffled(self, seed, step)

    def spoil(self, *args):
        step_of(self, *args)
        with torch.no_grad():
            self.param_groups[0]["params"][0].fill_(float("nan"))

    monkeypatch.setattr(Batches, "shuffled", interrupted)
    monkeypatch.setattr(AdamW, "step", spoil)
    outcome = run_script("train.py", "--resume", f"--out_dir={run}", "--max_iters=30")
    assert refused(outcome, "is not finite at step 21")
    assert contents(run)["ckpt.pt"] == before


# Less than a full machine


def test_training_needs_neither_matplotlib_nor_opencc(tiny_flags, tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.pyplot", "opencc"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run_script("train.py", *tiny_flags, f"--out_dir={tmp_path}", "--max_iters=2").code == 0
    assert run_script("sample.py", f"--out_dir={tmp_path}", "--num_samples=1").code == 0


def test_no_compiler_is_asked_for(tiny_flags, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run_script("train.py", *tiny_flags, f"--out_dir={tmp_path}", "--max_iters=2").code == 0


@pytest.mark.slow
def test_without_a_compiler_compile_is_refused_in_one_line(tiny_flags, tmp_path):
    env = {"CC": "no-such-compiler", "CXX": "no-such-compiler"}
    out_dir = tmp_path / "run"
    flags = [*tiny_flags, f"--out_dir={out_dir}", "--compile=true"]
    outcome = finish(start_script("train.py", *flags, env=env))
    assert outcome.code == 2 and outcome.out == "" and not out_dir.exists()
    assert outcome.err.startswith("train.py: error: torch.compile does not work here (")
    assert outcome.err.endswith("): install a C++ compiler or leave out --compile\n")
    assert outcome.err.count("\n") == 1


def test_paths_with_spaces_and_chinese_characters(tiny_flags, tiny_corpus, folder):
    data = shutil.copy(tiny_corpus, folder / "poems.txt")
    config = folder / "config.toml"
    config.write_text(f"data = {json.dumps(str(data))}\nmax_iters = 2\n", encoding="utf-8")
    small = [flag for flag in tiny_flags if not flag.startswith(("--data", "--max_iters"))]
    out_dir = folder / "run"
    outcome = run_script("train.py", config, *small, f"--out_dir={out_dir}")
    assert outcome.code == 0, outcome.err
    outcome = run_script("train.py", "--resume", f"--out_dir={out_dir}", "--max_iters=4")
    assert outcome.code == 0, outcome.err
    maps = folder / "my maps"
    outcome = run_script("sample.py", f"--out_dir={out_dir}", f"--maps={maps}", "--prompt=床前")
    assert outcome.code == 0 and list(maps.rglob("*.npz"))
