"""Whole trainings: what they leave, and that neither pauses, looks nor helpers change them."""

import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch

from data.baselines import unigram_and_bigram
from data.batches import Batches
from data.corpus import EXTRA_POEMS, Corpus, corpus_of, read_documents
from data.vocabulary import DataError
from maps.capture import capture, load_map, map_path, saved_maps
from model.checkpoint import load_checkpoint, load_model, save_checkpoint
from tests.conftest import (
    PROBE,
    ROOT,
    TINY,
    as_typed,
    finish,
    flags,
    metrics,
    run_script,
    same,
    start_script,
)

CLOCK = ("elapsed_s", "config")
several = pytest.mark.skipif(os.name == "nt", reason="torchrun does not start on Windows")


def train(out_dir, tiny_flags, *more):
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={out_dir}", *more)
    assert outcome.code == 0, outcome.err
    return load_checkpoint(out_dir / "ckpt.pt")


def trained(state: dict) -> dict:
    """What two equal trainings have equal."""
    return {key: value for key, value in state.items() if key not in CLOCK}


def equal_maps(a, b) -> bool:
    return all(
        np.array_equal(load_map(one).weights, load_map(other).weights)
        for one, other in zip(saved_maps(a)[0], saved_maps(b)[0], strict=True)
    )


# Same run, same result


def test_the_same_training_twice_gives_the_same_bits(tiny_run, tiny_flags, tmp_path):
    state = train(tmp_path / "again", tiny_flags)
    assert same(trained(state), trained(load_checkpoint(tiny_run / "ckpt.pt")))
    assert metrics(tmp_path / "again") == metrics(tiny_run)
    assert equal_maps(tmp_path / "again", tiny_run)


def test_another_seed_gives_another_training(tiny_run, tiny_flags, tmp_path):
    state = train(tmp_path / "other", tiny_flags, "--seed=1")
    assert not same(state["model"], load_checkpoint(tiny_run / "ckpt.pt")["model"])


def test_half_and_half_equals_the_whole_to_the_last_bit(tiny_flags, tmp_path):
    # Over an epoch's end (31 batches), with dropout, and with a pause that is no round step.
    long = ["--dropout=0.2", "--eval_interval=9", "--lr_decay_iters=36"]
    whole = train(tmp_path / "whole", tiny_flags, *long, "--max_iters=36")
    train(tmp_path / "parts", tiny_flags, *long, "--max_iters=18")
    parts = train(tmp_path / "parts", tiny_flags, *long, "--max_iters=36", "--resume")
    assert same(trained(whole), trained(parts))
    unfinished = [{**line, "val_loss": None} for line in metrics(tmp_path / "parts")]
    assert unfinished == [{**line, "val_loss": None} for line in metrics(tmp_path / "whole")]
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert equal_maps(tmp_path / "whole", tmp_path / "parts")


def test_extra_poems_are_read_and_a_pause_beside_them_changes_nothing(tiny_flags, tmp_path):
    # An epoch has 31 batches: steps 1 to 5 read both texts, the others the poems alone.
    extra = tmp_path / "extra.txt"
    poems = read_documents(EXTRA_POEMS)[:400]
    extra.write_text("\n".join(poems), encoding="utf-8")
    these = ["--lr_decay_iters=36", f"--extra_data={extra}"]
    whole = train(tmp_path / "whole", tiny_flags, *these, "--max_iters=6")
    train(tmp_path / "parts", tiny_flags, *these, "--max_iters=3")
    parts = train(tmp_path / "parts", tiny_flags, *these, "--max_iters=6", "--resume")
    assert same(trained(whole), trained(parts))
    without = train(tmp_path / "without", tiny_flags, "--lr_decay_iters=36", "--max_iters=6")
    assert not same(without["model"], whole["model"])
    corpus = corpus_of(whole)
    assert corpus.extra and corpus.train == corpus_of(without).train
    extra.write_text("\n".join(poems[1:]), encoding="utf-8")
    with pytest.raises(DataError, match="no longer the text"):
        corpus_of(whole)
    outcome = run_script("train.py", "--resume", f"--out_dir={tmp_path / 'whole'}", "--max_iters=9")
    assert outcome.code == 2 and "text in data or extra_data" in outcome.err


@pytest.mark.parametrize("at", [0, 7, 12])
def test_a_training_stopped_by_ctrl_c_goes_on_as_if_nothing_had_been(
    tiny_run, tiny_flags, tmp_path, monkeypatch, at
):
    out_dir = tmp_path / "stopped"
    shuffled = Batches.shuffled

    def interrupted(self, seed, step):
        if step == at:
            signal.raise_signal(signal.SIGINT)
        return shuffled(self, seed, step)

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "shuffled", interrupted)
        outcome = run_script("train.py", *tiny_flags, f"--out_dir={out_dir}")
    assert outcome.code == 130
    assert f"stopped at step {at + 1}, saved in" in outcome.err
    *_, state = load_model(out_dir / "ckpt.pt")
    assert state["step"] == at + 1  # the step under way was finished
    assert math.isnan(state["val_loss"])  # not that of an earlier step
    state = train(out_dir, [], "--resume")  # from its own config.toml
    assert same(trained(state), trained(load_checkpoint(tiny_run / "ckpt.pt")))
    assert metrics(out_dir) == metrics(tiny_run) and equal_maps(out_dir, tiny_run)


def test_looking_more_often_changes_nothing(tiny_run, tiny_flags, tmp_path):
    often = train(tmp_path / "often", tiny_flags, "--eval_interval=3", "--eval_batches=1")
    state = load_checkpoint(tiny_run / "ckpt.pt")
    for part in ("model", "optimizer", "tokens"):
        assert same(often[part], state[part])
    assert often["val_loss"] == state["val_loss"]  # the last evaluation takes all batches


def test_thread_counts_agree_to_rounding(tiny_flags, tmp_path, threads):
    torch.set_num_threads(2)
    few = ["--max_iters=3", "--log_interval=1", "--eval_batches=1"]
    train(tmp_path / "two", tiny_flags, *few)
    torch.set_num_threads(1)
    train(tmp_path / "one", tiny_flags, *few)
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert one["train_loss"] == pytest.approx(two["train_loss"], abs=1e-3)
        assert one["val_loss"] == pytest.approx(two["val_loss"], abs=1e-3)


@pytest.mark.parametrize("parts", [2, 40, 10**12])  # more parts than rows
def test_accumulated_parts_are_the_whole_batch_to_rounding(tiny_flags, tmp_path, parts):
    # Muon's bfloat16 iteration magnifies rounding, so few steps.
    few = ["--max_iters=2", "--lr_decay_iters=20"]
    whole = train(tmp_path / "whole", tiny_flags, *few)
    cut = train(tmp_path / "cut", tiny_flags, *few, f"--accumulation={parts}")
    assert cut["val_loss"] == pytest.approx(whole["val_loss"], abs=1e-3)
    assert cut["tokens"] == whole["tokens"]


@several
@pytest.mark.slow
def test_two_processes_train_as_one_and_resume(tiny_flags, tmp_path):
    """torchrun shares each batch among its processes; --resume works there too."""

    def torchrun(*more):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node=2", str(ROOT / "train.py"), *tiny_flags]
        ended = subprocess.run(
            [
                *map(as_typed, command),
                f"--out_dir={tmp_path / 'two'}",
                "--lr_decay_iters=20",
                *more,
            ],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=180,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert ended.returncode == 0, ended.stderr
        return load_checkpoint(tmp_path / "two" / "ckpt.pt")

    state = torchrun("--max_iters=10")
    one = train(tmp_path / "one", tiny_flags, "--max_iters=10", "--lr_decay_iters=20")
    assert state["step"] == 10 and state["tokens"] == one["tokens"]
    state = torchrun("--max_iters=20", "--resume")
    one = train(tmp_path / "one", tiny_flags, "--max_iters=20", "--resume")
    assert state["step"] == 20 and state["tokens"] == one["tokens"]
    lines = [metrics(tmp_path / name) for name in ("one", "two")]
    for a, b in zip(*lines, strict=True):
        assert a["step"] == b["step"] and a["learning_rate"] == b["learning_rate"]
        assert a["val_loss"] == pytest.approx(b["val_loss"], abs=1e-2)
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-2)


STOPPED_WHILE_LOOKING = """
import runpy, signal, sys
sys.path.insert(0, sys.argv[1])
import maps.capture
save_map = maps.capture.save_map
def stopped(path, map):
    save_map(path, map)
    if map.step == 3:
        signal.raise_signal(signal.SIGTERM)
maps.capture.save_map = stopped
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@several
@pytest.mark.slow
def test_all_processes_stop_after_the_same_step(tiny_flags, tmp_path):
    """The first process is told to stop while it looks and the second one is a step ahead."""
    script, out_dir = tmp_path / "stopped.py", tmp_path / "run"
    script.write_text(STOPPED_WHILE_LOOKING, encoding="utf-8")
    endless = [*tiny_flags, "--max_iters=100000", "--eval_interval=1", f"--out_dir={out_dir}"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env |= {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2"}
    ranks = [
        start_script(
            script,
            ROOT,
            ROOT / "train.py",
            *endless,
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        outcomes = [finish(process) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [outcome.code for outcome in outcomes] == [128 + signal.SIGTERM] * 2, outcomes
    assert load_checkpoint(out_dir / "ckpt.pt")["step"] == 4  # the one that both were at
    assert "stopped at step 4, saved in" in outcomes[0].err


def test_a_variable_of_the_cluster_alone_makes_no_second_process(tiny_flags, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(tmp_path, tiny_flags, "--max_iters=1")


# What a run leaves


def test_smoke_training_by_command_line(folder):
    """The shipped corpus, a real process, a path with a space and Chinese characters."""
    out_dir = folder / "smoke"
    arguments = ("configs/smoke.toml", f"--out_dir={out_dir}", "--max_iters=6", "--eval_interval=3")
    outcome = finish(start_script("train.py", *arguments, "--batch_size=256", cwd=ROOT))
    assert outcome.code == 0, outcome.err
    assert re.fullmatch(r"final: step=6 val_loss=\d\.\d{4}", outcome.out.splitlines()[-1])
    assert "Traceback" not in outcome.err and "Warning" not in outcome.err
    found = {p.relative_to(out_dir).as_posix() for p in out_dir.rglob("*") if p.is_file()}
    assert found >= {
        "config.toml",
        "metrics.jsonl",
        "ckpt.pt",
        *(f"attention/0/step_{step:06d}.npz" for step in (0, 3, 6)),
    }
    assert not [name for name in found if name.endswith(".tmp")]
    val_loss = metrics(out_dir)[-1]["val_loss"]
    assert outcome.out.splitlines()[-1].endswith(f"{val_loss:.4f}")
    page = out_dir / "attention.html"
    assert page.exists() and "床" in page.read_text(encoding="utf-8")
    poems = run_script(
        "sample.py", f"--out_dir={out_dir}", "--num_samples=2", "--prompt=床前明月光"
    )
    assert poems.code == 0, poems.err
    assert len(poems.out.splitlines()) == 2 and poems.out.startswith("床前明月光")


def test_the_log_has_the_fields_of_its_description(tiny_run):
    lines = metrics(tiny_run, times=True)
    for line in lines:
        assert list(line) == [
            "step",
            "train_loss",
            "val_loss",
            "learning_rate",
            "tokens",
            "tokens_per_s",
            "elapsed_s",
        ]
    assert [line["step"] for line in lines] == [0, 5, 10, 15, 20]
    assert [line["val_loss"] is None for line in lines] == [False, True, False, True, False]
    tokens, elapsed = ([line[key] for line in lines] for key in ("tokens", "elapsed_s"))
    assert tokens == sorted(tokens) and elapsed == sorted(elapsed)


def test_an_untrained_model_is_the_control_at_step_0(tiny_run, tiny_corpus):
    first = metrics(tiny_run)[0]
    model, _, _ = load_model(tiny_run / "ckpt.pt")
    corpus = Corpus(read_documents(tiny_corpus), 0, [PROBE])
    ids = np.array(corpus.vocabulary.encode("\n".join([*corpus.val, ""])))
    # All common characters are alike, and all rare ones.
    common, rare = model.config.cutoff, len(corpus.vocabulary) - model.config.cutoff
    expected = math.log(common + 1) + (ids >= common).mean() * math.log(rare)
    assert rare > 0 and first["val_loss"] == pytest.approx(expected, abs=0.01)
    map = load_map(map_path(tiny_run, 0, 0))
    assert map.step == 0 and "".join(map.tokens) == "\n" + PROBE


def test_the_model_learns(tiny_run):
    lines = metrics(tiny_run)
    assert lines[-1]["val_loss"] < lines[0]["val_loss"] - 0.1


def test_the_saved_maps_are_those_of_the_saved_model(tiny_run, tiny_corpus):
    model, _, state = load_model(tiny_run / "ckpt.pt")
    corpus = Corpus(read_documents(tiny_corpus), 0, [PROBE])
    map = capture(model, corpus.vocabulary, PROBE, state["step"], state["val_loss"])
    last = load_map(saved_maps(tiny_run)[0][-1])
    np.testing.assert_allclose(last.weights, map.weights, atol=1e-6)
    assert last.step == TINY["max_iters"] and last.val_loss == state["val_loss"]


def test_a_text_of_ones_own(tmp_path):
    """The config's probes belong to its own text: another text shows its first held-out document."""
    lines = [
        f"{n} ships that pass in the night, and speak each other in passing" for n in range(90)
    ]
    text = tmp_path / "own.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    out_dir = tmp_path / "own run"
    outcome = run_script("train.py", *flags(data=text, out_dir=out_dir, **TINY), "--max_iters=2")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count(f'"{out_dir}"') == 2  # in the commands to go on with, as it is typed
    [following] = re.findall("next: python (.*)", outcome.out)
    assert run_script(*shlex.split(following), "--num_samples=1").code == 0
    probe = Corpus(lines).val[0][:64]
    [maps] = saved_maps(out_dir).values()
    assert "".join(load_map(maps[-1]).tokens[1:]) == probe
    config = tomllib.loads((out_dir / "config.toml").read_text(encoding="utf-8"))
    assert config["probes"] == [probe] and config["extra_data"] == ""
    assert run_script("train.py", "--resume", f"--out_dir={out_dir}", "--max_iters=3").code == 0


def test_going_on_in_another_number_format(tiny_run, tmp_path):
    out_dir = shutil.copytree(tiny_run, tmp_path / "run")
    more = ["--resume", "--max_iters=22", "--dtype=bfloat16"]
    outcome = run_script("train.py", f"--out_dir={out_dir}", *more)
    assert outcome.code == 0 and "bfloat16 products" in outcome.err
    assert load_checkpoint(out_dir / "ckpt.pt")["dtype"] == "bfloat16"


@pytest.mark.parametrize(("device", "asked"), [("cuda", "auto"), ("cpu", "bfloat16")])
def test_resuming_keeps_the_number_format_on_the_same_kind_of_device_alone(
    device, asked, tiny_run, tmp_path, monkeypatch
):
    out_dir = shutil.copytree(tiny_run, tmp_path / "run")
    state = load_checkpoint(out_dir / "ckpt.pt")
    assert state["device"] == "cpu"
    save_checkpoint(out_dir / "ckpt.pt", state | {"device": device, "dtype": "bfloat16"})
    names = []
    monkeypatch.setattr(
        "model.machine.pick_dtype", lambda name, device: names.append(name) or torch.float32
    )
    more = ["--resume", "--dtype=auto", "--max_iters=22"]
    assert run_script("train.py", f"--out_dir={out_dir}", *more).code == 0
    assert names == [asked]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler here")
def test_compiled_it_trains_the_same_to_rounding(tiny_flags, tmp_path, monkeypatch):
    asked, compile = [], torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **how: asked.append((f.__name__, how)) or compile(f, **how)
    )
    few = ["--max_iters=3", "--log_interval=1", "--eval_batches=1"]
    train(tmp_path / "plain", tiny_flags, *few)
    assert not asked
    train(tmp_path / "compiled", tiny_flags, *few, "--compile=true")
    assert asked[-1] == ("hidden", {"dynamic": True})
    for a, b in zip(metrics(tmp_path / "plain"), metrics(tmp_path / "compiled"), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-3)


def test_the_end_compares_with_counting(tiny_flags, tiny_corpus, tmp_path):
    outcome = run_script("train.py", *tiny_flags, f"--out_dir={tmp_path / 'run'}")
    corpus = Corpus(read_documents(tiny_corpus), 0, [PROBE])
    for loss in unigram_and_bigram(corpus.train, corpus.val, corpus.vocabulary):
        assert f"{loss:.3f}" in outcome.out


def test_the_validation_loss_is_the_mean_over_held_out_characters(tiny_run, tiny_corpus):
    model, _, state = load_model(tiny_run / "ckpt.pt")
    corpus = Corpus(read_documents(tiny_corpus), 0, [PROBE])
    total = count = 0
    for poem in corpus.val:  # one poem at a time, through the plain path
        ids = torch.tensor([corpus.vocabulary.encode("\n" + poem + "\n")])
        with torch.no_grad():
            total += model(ids[:, :-1], ids[:, 1:])[1].item() * (ids.size(1) - 1)
        count += ids.size(1) - 1
    assert state["val_loss"] == pytest.approx(total / count, rel=1e-5)
