"""The benchmarks' arithmetic and their words; nothing here measures a time."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import common, evidence, reference
from benchmarks.__main__ import NAMES, main
from benchmarks.common import publish, require, table
from benchmarks.evidence import FIRST_SEED
from benchmarks.flops import training_flops
from benchmarks.reference import LOW, PEAK, WARMUP, learning_rate
from benchmarks.runs import Log, Memory
from benchmarks.steps import Step
from command_line import UsageError
from maps.bootstrap import Interval
from maps.evidence import Pair
from model.checkpoint import load_checkpoint
from model.gpt import GPT, CausalSelfAttention, GPTConfig
from tests.conftest import TINY, run_script, same


@pytest.mark.parametrize("T", [4, 8])
@pytest.mark.parametrize("cutoff", [11, 6])
def test_flops_are_those_torch_counts(T, cutoff, monkeypatch):
    # The explicit path: torch's counter knows products, not the fused kernel on every device.
    monkeypatch.setattr(CausalSelfAttention, "forward", lambda self, x: self.explicit(x)[0])
    config = GPTConfig(11, block_size=8, n_layer=2, n_head=2, n_embd=12, cutoff=cutoff)
    monkeypatch.setattr("model.loss.GRAIN", 1)  # no rows are padded
    model, idx = GPT(config), torch.randint(11, (5, T))
    rare = int((idx >= cutoff).sum())
    with FlopCounterMode(display=False) as counter:
        model.loss(idx, idx).backward()
    assert counter.get_total_flops() == pytest.approx(
        training_flops(config, T, rare / idx.numel()) * idx.numel()
    )


def log(tmp_path, *lines):
    path = tmp_path / "metrics.jsonl"
    keys = ("step", "tokens", "tokens_per_s", "val_loss")
    text = "".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")
    return Log.read(path)


def test_log_times_steps_alone_and_reads_between_evaluations(tmp_path):
    found = log(
        tmp_path, (0, 0, None, 9.0), (1, 100, 50, None), (2, 300, 100, 7.0), (3, 400, 100, 6.0)
    )
    assert found.seconds == [0, 4, 5]
    assert found.steps == 3 and found.total_s == 5
    assert found.time_to(8) == 2 and found.time_to(6.25) == 4.75 and found.time_to(9) == 0
    assert found.time_to(5.9) is None


def test_time_to_a_loss_is_the_first_one_where_the_curve_turns_back(tmp_path):
    found = log(tmp_path, (0, 0, None, 9.0), (1, 1, 1, 7.0), (2, 2, 1, 8.0), (3, 3, 1, 6.0))
    assert found.time_to(7.5) == 0.75


def test_memory_that_is_flat_does_not_rise():
    assert Memory(5, [1, 5, 5, 4, 5]).rise() == 0
    assert Memory(9, [5, 5, 5, 9]).rise() == 4
    assert Memory().rise() is None


def test_parts_of_a_step_do_not_overlap():
    from benchmarks.profile import parts

    step = Step(GPTConfig(11, 8, n_layer=2, n_head=2, n_embd=12), torch.float32, timed=True)
    idx = torch.randint(11, (2, 8))
    step(idx, idx)
    inner = [seconds for name, seconds in step.seconds.items() if ": " in name]
    assert len(inner) == 4
    assert all(seconds > 0 for seconds in parts(step).values())
    assert math.isclose(sum(parts(step).values()), sum(step.seconds.values()) - sum(inner))


def test_reference_rate_rises_then_falls_as_a_cosine():
    assert learning_rate(0, 2000) == PEAK / WARMUP
    assert learning_rate(WARMUP - 1, 2000) == learning_rate(WARMUP, 2000) == PEAK
    assert math.isclose(learning_rate(1050, 2000), (PEAK + LOW) / 2)
    assert math.isclose(learning_rate(2000, 2000), LOW)


def test_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="no benchmark trainig; did you mean training"):
        main(["trainig"])


def test_missing_peer_is_answered_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    for name, (_, _, packages) in NAMES.items():
        if packages:
            with pytest.raises(UsageError, match="pip install -r benchmarks/requirements.txt"):
                main([name])


COUNT = "must be a whole number, 1 or more, not"
CHARACTER = "takes one character, not"


@pytest.mark.parametrize(
    ("arguments", "work", "says"),
    [
        ("training --seeds 0", "compare.start", f"--seeds: {COUNT} 0"),
        ("training --quick --seeds=-1", "compare.start", f"--seeds: {COUNT} -1"),
        ("memory --steps 0", "memory.train", f"--steps: {COUNT} 0"),
        ("memory --steps many", "memory.train", f"--steps: {COUNT} many"),
        ("faults --kills 0", "faults.kill_and_resume", f"--kills: {COUNT} 0"),
        ("profile --n_embd 100", "profile.read_documents", "100 is not divisible by n_head 8"),
        ("profile --n_layer 0", "profile.read_documents", "n_layer must be at least 1, not 0"),
        ("profile --batch_size 0", "profile.read_documents", "batch_size must be above zero"),
        ("profile --dtype float", "profile.read_documents", "unknown dtype float"),
        ("profile --n_embd 8000000", "profile.Step", "these sizes need about"),
        ("quality --num_samples 0", "quality.load_model", f"--num_samples: {COUNT} 0"),
        ("quality --temperature -1", "quality.load_model", "temperature must be 0 or above"),
        ("quality --temperature nan", "quality.load_model", "temperature must be 0 or above"),
        ("evidence --trainings 0", "evidence.train", "trainings must be 1 to 10, not 0"),
        ("evidence --trainings 11", "evidence.train", "trainings must be 1 to 10, not 11"),
        ("evidence --query=", "evidence.train", f"--query {CHARACTER} ''"),
        ("evidence --query 光明", "evidence.train", f"--query {CHARACTER} '光明'"),
        ("evidence --query Q", "evidence.train", "the model does not know Q"),
        ("evidence --key=", "evidence.train", f"--key {CHARACTER} ''"),
        ("evidence --key 月光", "evidence.train", f"--key {CHARACTER} '月光'"),
        ("evidence --json=", "evidence.train", "cannot write ''"),
        ("evidence --json nowhere/a.json", "evidence.train", "cannot write 'nowhere/a.json'"),
    ],
)
def test_wrong_flags_are_refused_in_one_line_before_any_work(arguments, work, says, monkeypatch):
    monkeypatch.setattr(common, "find_spec", lambda name: True)  # no peer is needed here
    monkeypatch.setattr(f"benchmarks.{work}", lambda *args, **settings: pytest.fail("it began"))
    outcome = run_script("benchmarks/__main__.py", *arguments.split())
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("benchmarks: error: ") and says in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("flags", ["--max_iters=0", "--log_interval=0"])
def test_reference_refuses_counts_of_zero(flags, monkeypatch):
    monkeypatch.setattr(reference, "build", lambda vocab_size: pytest.fail("it began"))
    with pytest.raises(UsageError, match=f"{COUNT} 0; see `python -m benchmarks.reference --help`"):
        reference.main([flags])


def test_a_training_of_evidence_that_fails_is_told_by_its_last_words(tmp_path):
    flags = [f"--out_dir={tmp_path}", "--trainings=1", "--train", "dtype=float"]
    outcome = run_script("benchmarks/__main__.py", "evidence", *flags)
    started, error = outcome.err.splitlines()
    assert outcome.code == 2 and started == "training without tenth 0 ..."
    assert error.startswith("benchmarks: error: `") and "train.py: error: unknown dtype" in error


def test_evidence_keeps_ended_trainings_of_the_same_settings_alone(tiny_corpus, tmp_path, capsys):
    out_dir, figures = tmp_path / "evidence", tmp_path / "evidence.json"
    settings = [f"{name}={value}" for name, value in TINY.items()]

    def train(*more: str) -> list[dict]:
        flags = ["--trainings=2", f"--out_dir={out_dir}", f"--json={figures}"]
        main(["evidence", *flags, "--train", f"data={tiny_corpus}", *settings, *more])
        return [load_checkpoint(out_dir / f"fold{fold}" / "ckpt.pt") for fold in range(2)]

    first = train()
    assert [state["config"]["fold"] for state in first] == [0, 1]
    assert [state["config"]["seed"] for state in first] == [FIRST_SEED, FIRST_SEED + 1]
    assert list(json.loads(figures.read_text(encoding="utf-8")))[0] == "All 2 pooled"
    assert same(train(), first)  # elapsed_s too: nothing was trained again
    other = train("muon_momentum=0.5", "max_iters=2")
    assert [state["config"]["muon_momentum"] for state in other] == [0.5, 0.5]
    with pytest.raises(UsageError, match="leave out --keep or --train"):
        main(["evidence", "--keep", "--train", "max_iters=1"])
    with pytest.raises(UsageError, match="unknown argument --max_iter; did you mean --max_iters"):
        train("max_iter=1")


def test_present_package_is_not_missed():
    require("torch")


def test_publish_replaces_its_own_block_alone(tmp_path):
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nby hand\n", encoding="utf-8")
    publish("speed", "first", keep=True, path=path)
    publish("size", "other", keep=True, path=path)
    publish("speed", table(("a", "b"), [("x", 1)]), keep=True, path=path)
    publish("size", "not kept", keep=False, path=path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Results\n\nby hand\n")
    assert "first" not in text and "not kept" not in text
    assert text.count("## Speed") == text.count("## Size") == text.count("other") == 1
    assert "| x | 1 |" in text


def test_trainings_as_the_sample_have_students_interval(monkeypatch):
    """ln 1, 2, 4: mean ln 2, deviation ln 2, t(0.975; 2) = 4.303 (any table)."""
    lifts = iter([1.0, 2.0, 4.0])
    monkeypatch.setattr(
        evidence, "head_lifts", lambda sums: [SimpleNamespace(lift1=Interval(next(lifts), 0, 9))]
    )
    row = SimpleNamespace(sums=None, own_head=True, pair=Pair("光", "月"))
    line = evidence.between([SimpleNamespace(rows=[row])] * 3)
    low, high = (2 * 2 ** (sign * 4.303 / 3**0.5) for sign in (-1, 1))
    assert line == f"光→月  2.00 [{low:.2f}, {high:.2f}]  (1.00, 2.00, 4.00)"
