"""sample.py as it is called: what it prints, what it refuses."""

import os
import re
from pathlib import Path

import pytest

from maps.capture import load_map, saved_maps
from model.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import Outcome, finish, run_script, start_script
from writing.forms import FORMS, form_of
from writing.rhymes import Rhymes

WHOLE = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"


@pytest.fixture
def sample(tiny_run: Path):
    """Runs sample.py on the tiny run with some flags."""

    def run(*flags: object) -> Outcome:
        return run_script("sample.py", f"--out_dir={tiny_run}", *flags)

    return run


def poems(outcome: Outcome) -> list[str]:
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("\n")
    return outcome.out[:-1].split("\n")


def test_stdout_has_the_poems_only_one_a_line(sample):
    outcome = sample("--num_samples=70", "--prompt=明月")
    assert len(poems(outcome)) == 70
    assert all(poem.startswith("明月") for poem in poems(outcome))
    assert outcome.err == ""


def test_a_poem_does_not_depend_on_how_many_are_written(sample):
    many = poems(sample("--num_samples=70", "--seed=5"))
    assert poems(sample("--num_samples=3", "--seed=5")) == many[:3]
    assert len(set(many)) > 60
    assert poems(sample("--num_samples=3", "--seed=6")) != many[:3]


@pytest.mark.parametrize("flag", ["--temperature=0", "--top_k=1", "--top_p=1e-6", "--top_p=1e-46"])
def test_without_chance_all_poems_are_the_likeliest(sample, flag):
    [likeliest] = poems(sample("--num_samples=1", "--prompt", "明月", "--temperature=0"))
    assert poems(sample("--num_samples=3", "--prompt", "明月", flag)) == [likeliest] * 3


def test_max_new_tokens_counts_what_is_added(sample):
    for poem in poems(sample("--prompt=明月", "--max_new_tokens=7", "--num_samples=20")):
        assert len(poem) <= 9


def test_a_prompt_longer_than_the_block(sample):
    [poem] = poems(sample("--prompt", WHOLE * 4, "--num_samples=1"))
    assert poem.startswith(WHOLE * 4)


def test_half_width_punctuation_in_a_prompt(sample):
    [poem] = poems(sample("--prompt=床前明月光, 疑是地上霜.", "--num_samples=1"))
    assert poem.startswith("床前明月光，疑是地上霜。")


@pytest.mark.parametrize("name", FORMS)
def test_200_poems_of_a_form_that_rhyme(sample, tiny_corpus, name):
    flags = ["--form", name, "--num_samples=200", "--temperature=1.5", "--rhyme"]
    found = poems(sample(*flags))
    assert len(found) == 200
    assert all(form_of(poem) == FORMS[name] for poem in found)


def test_200_acrostics(sample):
    for poem in poems(sample("--acrostic=明月山水", "--num_samples=200")):
        assert re.fullmatch(r"明\w{4}，月\w{4}。山\w{4}，水\w{4}。", poem)
    for poem in poems(sample("--acrostic=明 月 山 水", "--form=qijue", "--prompt=明月")):
        assert re.fullmatch(r"明月\w{5}，月\w{6}。山\w{6}，水\w{6}。", poem)


def test_rhyme_makes_more_poems_rhyme(sample, tiny_corpus):
    rhymes = Rhymes(tiny_corpus.read_text(encoding="utf-8").split())
    flags = ["--form=五绝", "--num_samples=100", "--temperature=1"]
    free, bound = poems(sample(*flags)), poems(sample(*flags, "--rhyme"))
    assert sum(map(rhymes.rhymed, free)) < 40
    assert sum(map(rhymes.rhymed, bound)) > sum(map(rhymes.rhymed, free))


def test_pretty_sets_lines_and_a_blank_line_between_poems(sample):
    flags = ["--form=五绝", "--num_samples=3"]
    plain, pretty = sample(*flags), sample(*flags, "--pretty")
    sheets = pretty.out.removesuffix("\n").split("\n\n")
    assert [sheet.replace("\n", "") for sheet in sheets] == poems(plain)
    assert all(re.fullmatch(r"(\w{5}，\n\w{5}。\n?){2}", sheet) for sheet in sheets)


def test_novelty_is_reported_beside_the_poems(sample, tiny_corpus):
    held_in = tiny_corpus.read_text(encoding="utf-8").split("\n")[0]
    outcome = sample("--novelty", "--num_samples=1", "--prompt", held_in, "--max_new_tokens=1")
    assert len(poems(outcome)) == 1
    bare = re.sub(r"\W", "", held_in)
    assert f"{len(bare)} characters in a row" in outcome.err and held_in in outcome.err


def test_maps_of_the_poems_are_saved(sample, tmp_path):
    flags = ["--num_samples=2", "--form=五绝", "--maps", tmp_path / "maps"]
    found = poems(sample(*flags))
    saved = saved_maps(tmp_path / "maps")
    assert ["".join(load_map(saved[i][0]).tokens) for i in (0, 1)] == ["\n" + p for p in found]
    again = sample(*flags)
    assert (again.code, again.out) == (2, "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--temperature=-1"], "temperature"),
        (["--temperature=hot"], "temperature"),
        (["--temperature=nan"], "temperature"),
        (["--top_p=0"], "top_p"),
        (["--top_p=1.1"], "top_p"),
        (["--top_k=-1"], "top_k"),
        (["--num_samples=0"], "num_samples"),
        (["--num_samples=99999999999999"], "num_samples"),
        (["--max_new_tokens=0"], "max_new_tokens"),
        (["--max_new_tokens=99999999999999"], "max_new_tokens"),
        (["--form=sonnet"], "unknown form sonnet"),
        (["--form=五绝", "--prompt=床前明月光光"], "character 6 of the prompt is 光"),
        (["--form=七律", "--max_new_tokens=20"], "七律 needs 64"),
        (["--acrostic=明月山"], "3 characters"),
        (["--acrostic=明月山水", "--form=五律"], "8 lines"),
        (["--acrostic=明月山😀"], "😀"),
        (["--acrostic=明月山水", "--prompt=水"], "character 1"),
        (["--prompt=月😀"], "😀 (U+1F600), character 2"),
        (["--prompt=月\n月"], "line feed"),
        (["--promt=月"], "did you mean --prompt?"),
        (["--out_dir=nowhere"], "run `python train.py"),
        (["--maps=sample.py"], "sample.py"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(sample, flags, said):
    outcome = sample(*flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sample.py: error: ") and outcome.err.count("\n") == 1
    assert said in outcome.err


def test_a_damaged_checkpoint_is_refused(tmp_path, tiny_run):
    (tmp_path / "ckpt.pt").write_bytes((tiny_run / "ckpt.pt").read_bytes()[:5000])
    outcome = run_script("sample.py", f"--out_dir={tmp_path}")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert str(tmp_path / "ckpt.pt") in outcome.err


@pytest.mark.parametrize("flag", ["--rhyme", "--novelty"])
def test_what_learns_from_the_training_poems_needs_them(tmp_path, tiny_run, flag):
    state = load_checkpoint(tiny_run / "ckpt.pt")
    other = tmp_path / "other.txt"
    other.write_text("明月\n" * 20, encoding="utf-8", newline="\n")
    state["config"]["data"] = str(other)
    save_checkpoint(tmp_path / "ckpt.pt", state)
    outcome = run_script("sample.py", f"--out_dir={tmp_path}", flag)
    assert (outcome.code, outcome.out) == (2, "") and "no longer the text" in outcome.err


@pytest.mark.slow
def test_a_console_with_another_code_page(tiny_run):
    flags = [f"--out_dir={tiny_run}", "--num_samples=1", "--prompt=明月", "--novelty"]
    process = start_script("sample.py", *flags, env={"PYTHONIOENCODING": "cp437"})
    outcome = finish(process)
    assert outcome.code == 0 and outcome.out.startswith("??")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="closes a pipe as POSIX does")
def test_a_reader_that_leaves_is_no_error(tiny_run):
    flags = [f"--out_dir={tiny_run}", "--num_samples=2000"]
    process = start_script("sample.py", *flags)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
