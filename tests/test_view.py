"""view.py as it is called: the page, the terminal, pictures, evidence, and folders of maps alone."""

import json
import math
import re
import shlex
import shutil
import sys
import webbrowser
from pathlib import Path

import numpy as np
import pytest
import torch

from data.vocabulary import Vocabulary
from maps.atlas import KINDS, MIXED
from maps.capture import AttentionMap, capture, load_map, map_path, save_map, saved_maps
from maps.look import draw_head, look_at
from maps.page import pack_weights
from maps.report import MIN_POEMS
from model.checkpoint import load_model, untrained_model
from tests.conftest import PROBE, ROOT, Outcome, finish, run_script, start_script

POEM = "月明光上月，"


@pytest.fixture
def run(tiny_run: Path, folder: Path) -> Path:
    """The tiny run in a folder that a test may write to."""
    return Path(shutil.copytree(tiny_run, folder / "run"))


@pytest.fixture
def poems(run: Path) -> Path:
    """A folder of maps alone, as sample.py leaves it."""
    poems = run.parent / "poems"
    outcome = run_script(
        "sample.py", f"--out_dir={run}", "--num_samples=2", "--prompt", POEM, "--maps", poems
    )
    assert outcome.code == 0, outcome.err
    return poems


def view(*arguments: object) -> Outcome:
    """What view.py prints, where all is well."""
    outcome = run_script("view.py", *arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def refused(says: str, *arguments: object) -> None:
    outcome = run_script("view.py", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("view.py: error: ") and outcome.err.count("\n") == 1
    assert says in outcome.err


def page_data(path: Path) -> dict:
    page = path.read_text(encoding="utf-8")
    found = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)
    [data] = [value for value in map(json.loads, found) if "texts" in value]
    return data


def texts(data: dict) -> list[str]:
    return ["".join(text["tokens"][1:]) for text in data["texts"]]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def last_map(run: Path, number: int = 0) -> AttentionMap:
    return load_map(saved_maps(run)[number][-1])


# The page


def test_without_a_wish_the_page_is_written_anew(run):
    page = run / "attention.html"
    before = files(run)
    page.unlink()
    outcome = view(run)
    assert outcome.out == "" and f"wrote {page}, " in outcome.err
    assert files(run) == before
    data = page_data(page)
    steps = [load_map(path).step for path in saved_maps(run)[0]]
    [text] = data["texts"]
    assert texts(data) == [PROBE] and [s["step"] for s in text["snapshots"]] == steps
    assert len(text["predictions"]) == len(text["tokens"]) and text["cuts"]
    assert data["run"]["step"] == 20 and data["loss"][-1][0] == 20


def test_the_page_of_other_texts_in_another_file(run):
    page = run.parent / "other.html"
    before = (run / "attention.html").read_bytes()
    view(run, f"--html={page}", "--text=明月光", "--text", "月,光。")
    data = page_data(page)
    assert texts(data) == ["明月光", "月，光。"]  # half-width punctuation as the poems write it
    assert [[s["step"] for s in text["snapshots"]] for text in data["texts"]] == [[0, 20]] * 2
    model, characters, state = load_model(run / "ckpt.pt")
    probabilities = [p for _, p in data["texts"][0]["predictions"][-1]]
    assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1
    assert (run / "attention.html").read_bytes() == before


def test_opens_the_page(run, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert "browser" not in view(run, "--open").err
    assert opened == [(run / "attention.html").resolve().as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert f"no browser found: open {run / 'attention.html'}" in view(run, "--open").err


@pytest.mark.parametrize(
    ("name", "text"),
    [("evidence.json", "[]"), ("atlas.json", '{"found": ')],
)
def test_a_page_from_damaged_files_is_refused(run, name, text):
    (run / name).write_text(text, encoding="utf-8", newline="\n")
    before = (run / "attention.html").read_bytes()
    refused(f"{name} is damaged", run)
    assert (run / "attention.html").read_bytes() == before


def test_spoilt_lines_of_the_log_are_left_out(run):
    losses = page_data(run / "attention.html")["loss"]
    log = run / "metrics.jsonl"
    text = log.read_text(encoding="utf-8")
    spoilt = "{}\n[1]\n" + text + '"step"\n{"step": 25, "train\xff'
    log.write_bytes(spoilt.encode("latin-1"))
    view(run, "--png-loss", run.parent / "loss.png")
    view(run)
    assert page_data(run / "attention.html")["loss"] == losses


def test_maps_of_several_models_are_refused(run):
    map = last_map(run)
    other = AttentionMap(map.weights[:1], map.tokens, 30, 5.0)
    save_map(map_path(run, 0, 30), other)
    refused("are of several models or texts", run)
    save_map(map_path(run, 0, 30), AttentionMap(map.weights, map.tokens[::-1], 30, 5.0))
    refused("are of several models or texts", run)


# The terminal


def test_what_a_query_looks_at_in_a_text(run):
    model, characters, state = load_model(run / "ckpt.pt")
    vocabulary = Vocabulary(characters)
    maps = [capture(model, vocabulary, text, state["step"]) for text in ("床前明月光", "月光")]
    one = view(run, "--text=床前明月光", "--query=光")
    assert one.out == look_at(maps[0], "光") + "\n" and one.err == ""
    both = view(run, "--text=床前明月光", "--text=月光", "--query=光").out
    assert both == look_at(maps[0], "光") + "\n\n" + look_at(maps[1], "光") + "\n"


def test_without_a_text_the_first_probe_with_the_query_is_looked_at(run):
    first = last_map(run)
    assert view(run, "--query=光").out == look_at(first, "光") + "\n"
    weights = np.broadcast_to(np.eye(3, dtype=np.float32), (*first.weights.shape[:2], 3, 3))
    save_map(map_path(run, 1, 20), AttentionMap(weights, ["\n", "山", "人"], 20, 5.0))
    assert view(run, "--query=山").out == look_at(last_map(run, 1), "山") + "\n"
    assert view(run, "--query=月").out == look_at(first, "月") + "\n"


def test_a_head_as_shaded_blocks(run):
    map = last_map(run)
    assert view(run, "--layer=2", "--head=1").out == draw_head(map, 2, 1) + "\n"
    both = view(run, "--layer=1", "--head=2", "--query=月").out
    assert both == draw_head(map, 1, 2) + "\n\n" + look_at(map, "月") + "\n"


def test_plain_text_in_a_pipe(run):
    outcome = finish(start_script("view.py", run, "--query=光", "--layer=1", "--head=1"))
    map = last_map(run)
    assert outcome == Outcome(0, draw_head(map, 1, 1) + "\n\n" + look_at(map, "光") + "\n", "")


def test_a_query_that_is_not_in_the_text(run):
    before = files(run.parent)
    refused("the query 霜 is not one character of the text 明月", run, "--text=明月", "--query=霜")
    refused("the query 霜", run, "--text=明月", "--query=霜", f"--png={run.parent / 'map.png'}")
    refused("give --text once", run, "--text=明", "--text=月", f"--png={run.parent / 'map.png'}")
    assert files(run.parent) == before


# Pictures


def test_pictures(run):
    pytest.importorskip("matplotlib")
    for name, flags in {
        "one.png": ["--png", "--layer=1", "--head=2", "--query=光"],
        "all.png": ["--png", "--text=明月光"],
        "loss.png": ["--png-loss"],
    }.items():
        path = run.parent / name
        outcome = view(run, flags[0], path, *flags[1:])
        assert outcome.out == "" and f"wrote {path}" in outcome.err
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_without_a_chinese_font(run, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager

    fonts = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    path = run.parent / "map.png"
    warning, wrote = view(run, f"--png={path}", "--layer=1", "--head=1").err.splitlines()
    assert warning.startswith("warning: no Chinese font") and wrote == f"wrote {path}"
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("flag", ["--png", "--png-loss"])
def test_a_picture_without_matplotlib(run, monkeypatch, flag):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pictures need matplotlib: run `pip install", run, flag, run.parent / "map.png")
    assert not (run.parent / "map.png").exists()
    view(run, "--query=光")  # everything else goes on


# Evidence and atlas


def test_evidence_on_too_few_poems_says_so(run):
    found = run.parent / "found.json"
    outcome = view(run, "--query=光", "--key=月", "--evidence", f"--json={found}")
    assert "n too small" in outcome.out and f"wrote {found}" in outcome.err
    evidence = json.loads(found.read_text(encoding="utf-8"))["evidence"]
    asked = evidence["rows"][0]
    assert (asked["query"], asked["key"], asked["role"]) == ("光", "月", "asked")
    assert asked["poems"] < MIN_POEMS and asked["too_small"]
    assert asked["lift1"] is None and asked["lift2"] is None
    # It is kept, and the page shows it.
    assert json.loads((run / "evidence.json").read_text(encoding="utf-8"))["found"] == evidence
    assert page_data(run / "attention.html")["evidence"]["rows"][0]["n"] == asked["n"]


def test_whom_a_query_looks_for(run):
    before = files(run)
    outcome = view(run, "--query=月", "--evidence", f"--json={run.parent / 'found.json'}")
    assert "月" in outcome.out and files(run) == before
    found = json.loads((run.parent / "found.json").read_text(encoding="utf-8"))
    assert found["evidence"]["query"] == "月" and "partners" in found["evidence"]


def test_what_the_page_says_to_type_works(run):
    view(run)
    commands = page_data(run / "attention.html")["run"]["commands"]
    assert [command.split()[-1] for command in commands] == ["--evidence", "--atlas"]
    for command in commands:
        python, *arguments = shlex.split(command)
        assert python == "python" and run_script(*arguments).code == 0
    assert {"evidence", "atlas"} <= page_data(run / "attention.html").keys()


def test_the_page_and_the_terminal_name_heads_alike():
    words = json.loads((ROOT / "maps" / "page" / "words.json").read_text(encoding="utf-8"))
    for language, place in (("zh", 0), ("en", 1)):
        names = {kind: both[place] for kind, both in KINDS.items()} | {"mixed": MIXED[place]}
        assert words[language]["kinds"] == names


def test_the_atlas_names_every_head(run):
    outcome = view(run, "--atlas", f"--json={run.parent / 'found.json'}")
    assert outcome.out
    atlas = json.loads((run.parent / "found.json").read_text(encoding="utf-8"))["atlas"]
    assert [len(layer) for layer in atlas] == [2, 2]
    assert page_data(run / "attention.html")["atlas"] == atlas


def test_what_was_found_about_another_model_is_not_shown(run):
    """A run that is trained on or anew leaves evidence.json and atlas.json in its folder."""
    view(run, "--atlas")
    state = torch.load(run / "ckpt.pt", weights_only=True)
    other = {name: values.clone() for name, values in state["model"].items()}
    other["wte.weight"][0, 0] += 1e-6
    torch.save(state | {"model": other}, run / "ckpt.pt")
    view(run)
    assert "atlas" not in page_data(run / "attention.html")
    torch.save(state, run / "ckpt.pt")
    view(run)
    assert "atlas" in page_data(run / "attention.html")


# Maps alone


def test_the_page_of_maps_alone(poems):
    before = files(poems)
    outcome = view(poems)
    page = poems / "attention.html"
    assert files(poems) - before == {"attention.html"} and f"wrote {page}" in outcome.err
    data = page_data(page)
    maps = [last_map(poems, number) for number in (0, 1)]
    assert texts(data) == ["".join(map.tokens[1:]) for map in maps]
    assert all(len(t["snapshots"]) == 1 and not t["predictions"] for t in data["texts"])
    assert data["title"].startswith("poems") and "run" not in data and "loss" not in data


def test_maps_alone_in_the_terminal_and_as_a_picture(poems):
    map = last_map(poems)
    assert view(poems, "--query=光").out == look_at(map, "光") + "\n"
    assert view(poems, "--layer=2", "--head=2").out == draw_head(map, 2, 2) + "\n"
    pytest.importorskip("matplotlib")
    view(poems, f"--png={poems / 'map.png'}", "--query=光")
    assert (poems / "map.png").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--text=月"], "holds maps alone"),
        (["--atlas"], "holds maps alone"),
        (["--evidence", "--query=月"], "holds maps alone"),
        (["--query=牀"], "the query 牀 is not one character of the text"),
        (["--layer=0", "--head=1"], "layer 0 is not in this model: choose 1 to 2"),
        (["--layer=1", "--head=3"], "head 3 is not in this model: choose 1 to 2"),
        (["--png-loss=loss.png"], "metrics.jsonl"),
    ],
)
def test_what_maps_alone_cannot_answer(poems, flags, says):
    before = files(poems)
    refused(says, poems, *flags)
    assert files(poems) == before


def test_a_damaged_map_among_maps_alone(poems):
    [path] = saved_maps(poems)[1]
    path.write_bytes(path.read_bytes()[:200])
    before = files(poems)
    refused("is damaged or no attention map", poems)
    assert files(poems) == before


def test_folders_without_maps(run, tmp_path):
    shutil.rmtree(run / "attention")
    refused("no attention maps in", run)
    refused("no attention maps in", run, "--query=光")
    assert view(run, "--text=月光", "--query=光").out  # a text needs no saved map
    empty = tmp_path / "empty"
    (empty / "attention").mkdir(parents=True)
    refused("no attention maps in", empty)


def test_the_untrained_model_is_the_first_snapshot_of_a_text(run):
    view(run, "--text=明月光")
    model, characters, state = load_model(run / "ckpt.pt")
    untrained = capture(untrained_model(state), Vocabulary(characters), "明月光")
    [text] = page_data(run / "attention.html")["texts"]
    assert text["snapshots"][0]["weights"] == pack_weights(untrained.weights)
    assert text["snapshots"][0]["val_loss"] is None and math.isnan(untrained.val_loss)
