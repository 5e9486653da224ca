"""The page's Python side: what is packed can be read back, what is embedded stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import page as benchmark
from command_line import UsageError
from maps.atlas import KINDS as ATLAS_KINDS
from maps.atlas import MIXED
from maps.page import (
    PARTS,
    build_page,
    embed_json,
    pack_cuts,
    pack_weights,
    page_texts,
    write_page,
)

PROBES = (
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。",
    "凤凰台上凤凰游，凤去台空江自流。吴宫花草埋幽径，晋代衣冠成古丘。"
    "三山半落青天外，二水中分白鹭洲。总为浮云能蔽日，长安不见使人愁。",
)
STEPS = (0, 20, 50, 100, 200, 300, 450, 600, 800, 1000, 1250, 1500)


# ---------------------------------------------------------------- made-up data


@dataclass(frozen=True)
class Map:
    """What the page needs of a maps.capture.AttentionMap."""

    weights: np.ndarray
    tokens: list[str]
    step: int
    val_loss: float


def preferences(tokens: list[str], kind: str, random: np.random.Generator) -> np.ndarray:
    """Scores (T, T) of a head that does one thing well."""
    T = len(tokens)
    query, key = np.indices((T, T))
    if kind == "previous":
        return 5.0 * (query - key == 1)
    if kind == "start":
        return 6.0 * (key == 0)
    if kind == "same":
        equal = np.array([[a == b for b in tokens] for a in tokens])
        return 5.0 * (equal & (query > key)) + 3.0 * (key == 0)
    if kind == "couplet":
        return 5.0 * (query - key == 6) + 2.0 * (key == 0)
    if kind == "punctuation":
        return 4.0 * np.array([[b in "，。" for b in tokens]] * T)
    if kind == "meaning":
        pairs = {"光": "月", "霜": "光", "乡": "头", "流": "河", "月": "明"}
        wanted = np.array([[pairs.get(a) == b for b in tokens] for a in tokens])
        return 4.5 * wanted + 2.5 * (key == 0)
    return random.normal(size=(T, T))


KINDS = (
    ("previous", "start", "punctuation", "mixed"),
    ("couplet", "meaning", "same", "mixed"),
    ("mixed", "couplet", "start", "meaning"),
)
NAMES = {
    "previous": ("前一字", "previous character"),
    "start": ("开头", "start"),
    "punctuation": ("标点", "punctuation"),
    "couplet": ("上句同位", "couplet"),
    "meaning": ("意思", "meaning"),
    "same": ("同一个字", "same character"),
    "mixed": ("混合", "mixed"),
}


def made_up_maps(
    text: str, n_layer: int = 3, n_head: int = 4, steps: tuple[int, ...] = STEPS
) -> list[Map]:
    """Maps of one text as a training might leave them: heads without a preference learn one."""
    random = np.random.default_rng(len(text))
    tokens = ["\n", *text]
    T = len(tokens)
    final = np.stack(
        [
            [preferences(tokens, KINDS[layer % 3][head % 4], random) for head in range(n_head)]
            for layer in range(n_layer)
        ]
    )
    noise = random.normal(scale=0.35, size=final.shape)
    maps = []
    for step in steps:
        learned = 1 - math.exp(-step / 350)
        scores = np.where(np.tri(T, dtype=bool), learned * final + noise, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        loss = 4.4 + 4.35 * math.exp(-step / 260) if step else 8.748
        maps.append(Map(weights.astype(np.float32), tokens, step, loss))
    return maps


def made_up_predictions(text: str) -> list[list[tuple[str, float]]]:
    """Five likeliest characters for each position, the true one often among them."""
    random = np.random.default_rng(1)
    rows = []
    for true in [*text, "\n"]:
        others = [c for c in random.permutation(list("风花雪月山水人天云春，。不一")) if c != true]
        top = others[:5]
        if random.random() < 0.7:
            top[random.integers(3)] = true
        probabilities = np.sort(random.dirichlet(np.ones(7)))[::-1][:5]
        rows.append([(str(c), float(p)) for c, p in zip(top, probabilities, strict=True)])
    return rows


def made_up_cuts(maps: list[Map], predictions: list) -> list[dict]:
    """A cut for every cell with some weight, in the head, its layer and everywhere."""
    random = np.random.default_rng(2)
    weights = maps[-1].weights
    cuts, seen = [], set()
    for layer, head, query, key in np.argwhere(weights >= 0.05).tolist():
        if query == 0:
            continue  # nothing else to look at
        scopes = [(layer + 1, head + 1), (layer + 1, None), (None, None)]
        for factor, scope in enumerate(scopes, start=1):
            if (*scope, query, key) in seen:
                continue
            seen.add((*scope, query, key))
            moved = [(c, p * random.uniform(0.6, 1.1)) for c, p in predictions[query][:3]]
            delta = -factor * float(weights[layer, head, query, key]) * random.uniform(-0.5, 0.6)
            cuts.append(
                {
                    "layer": scope[0],
                    "head": scope[1],
                    "query": query,
                    "key": key,
                    "delta": delta,
                    "top": sorted(moved, key=lambda pair: -pair[1]),
                }
            )
    return cuts


def made_up_atlas(n_layer: int = 3, n_head: int = 4) -> list[list[dict]]:
    def entry(kind: str) -> dict:
        zh, en = NAMES[kind]
        score = None if kind == "mixed" else 5.4
        return {
            "key": kind,
            "name_zh": zh,
            "name_en": en,
            "score": score,
            "scores": {"previous": 1.2, kind: 5.4},
        }

    return [
        [entry(KINDS[layer % 3][head % 4]) for head in range(n_head)] for layer in range(n_layer)
    ]


def made_up_evidence() -> dict:
    """Figures such as a default run might give, one pair with too few occasions."""

    def row(query, key, role, n, weight, lift1, lift2, top, layer=2, head=2):
        return {
            "query": query, "key": key, "role": role, "n": n, "layer": layer, "head": head,
            "weight": weight, "lift1": lift1, "lift2": lift2, "top_share": top, "own_head": head != 2 or role == "asked",
            "mean_heads_lift1": lift1 and [1.2, 1.1, 1.3], "mean_heads_lift2": lift2 and [1.1, 1.0, 1.3],
            "too_small": n < 10, "left_out": 2 if query == "影" else 0, "by_distance": [0.14, 0.032],
        }  # fmt: skip

    return {
        "query": "光",
        "key": "月",
        "min_distance": 2,
        "min_n": 10,
        "poems": {"train": 31860, "val": 3541},
        "chosen": {"layer": 2, "head": 2},
        "rows": [
            row("光", "月", "asked", 31, 0.214, [4.62, 3.11, 6.34], [3.87, 2.71, 5.18], 0.47),
            row("明", "月", "related", 43, 0.248, [5.2, 3.9, 6.9], [4.4, 3.2, 5.6], 0.55),
            row("影", "月", "related", 27, 0.131, [2.8, 1.7, 100.0], [2.5, 1.6, 3.9], 0.31),
            row(
                "声",
                "庚羹盲觥彭亨",
                "related",
                61,
                0.09,
                [2.1, 1.6, 2.7],
                [1.9, 1.4, 2.4],
                0.2,
                3,
                4,
            ),
            row("光", "山", "control", 28, 0.031, [0.71, 0.44, 1.05], [0.93, 0.6, 1.31], 0.03),
            row("光", "人", "control", 25, 0.036, [0.88, 0.5, 1.28], [0.97, 0.64, 1.4], 0.05),
            row("月", "光", "reverse", 6, 0.06, None, None, 0.1),
            row("光", "月", "untrained", 31, 0.043, [1.01, 0.93, 1.1], [1.0, 0.94, 1.08], 0.02),
        ],
        "heads": [
            {
                "layer": layer,
                "head": head,
                "chosen": (layer, head) == (2, 2),
                "weight": 0.03 * head,
                "lift1": [0.6 + 0.5 * head * (layer == 2), 0.5, 1.1 + head * (layer == 2)],
                "lift2": [0.9, 0.6, 1.4],
                "top_share": 0.04 * head,
            }
            for layer in (1, 2, 3)
            for head in (1, 2, 3, 4)
        ],
        "cuts": [
            {
                "scope": scope,
                "layer": layer,
                "head": head,
                "n": 31,
                "cut": cut,
                "control": [-0.011, -0.034, 0.012],
                "difference": [cut[0] + 0.011, cut[1], cut[2]],
            }
            for scope, layer, head, cut in (
                ("head", 2, 2, [-0.124, -0.193, -0.055]),
                ("layer", 2, None, [-0.161, -0.244, -0.081]),
                ("all", None, None, [-0.302, -0.421, -0.19]),
            )
        ],
        "partners": [
            {"key": key, "n": n, "layer": 2, "head": 2, "lift": [lift, lift * 0.75, lift * 1.3]}
            for key, n, lift in (
                ("月", 298, 3.4),
                ("灯", 88, 2.9),
                ("日", 240, 2.6),
                ("霜", 61, 1.9),
                *((character, 30, 1.5) for character in "阴辉影烛星火明"),
            )
        ],
        "notes": {"zh": ["标点和开头不算。"], "en": ["Punctuation and the start don't count."]},
    }


def made_up_page(
    texts: tuple[str, ...] = PROBES, n_layer: int = 3, n_head: int = 4, **more
) -> dict:
    """Everything that a page can show."""
    maps = {str(n): made_up_maps(text, n_layer, n_head) for n, text in enumerate(texts)}
    predictions = {str(n): made_up_predictions(text) for n, text in enumerate(texts)}
    cuts = {name: made_up_cuts(maps[name], predictions[name]) for name in maps}
    losses = [
        [
            s,
            4.2 + 4.4 * math.exp(-s / 250),
            4.4 + 4.35 * math.exp(-s / 260) if s % 50 == 0 else None,
        ]
        for s in range(0, 1501, 10)
    ]
    return {
        "title": "out/tang",
        "run": {
            "config": {"n_layer": n_layer, "n_head": n_head, "n_embd": 128, "vocab_size": 6301},
            "step": 1500,
            "val_loss": 4.41,
            "commands": ["python view.py out/tang --query 光 --key 月 --evidence"],
            "baselines": [
                {"zh": "乱猜", "en": "uniform guess", "loss": 8.748},
                {"zh": "只看字频", "en": "character frequencies", "loss": 6.46},
                {"zh": "只看前一字", "en": "previous character only", "loss": 5.51},
            ],
        },
        "texts": page_texts(maps, predictions, cuts),
        "loss": losses,
        "atlas": made_up_atlas(n_layer, n_head),
        "evidence": made_up_evidence(),
        **more,
    }  # fmt: skip


def small_page(text: str = "床前明月光", **more) -> dict:
    return {"texts": page_texts({"0": made_up_maps(text, 1, 2, (0, 10))}), **more}


# ---------------------------------------------------------------- reading a page


class Reader(HTMLParser):
    """What a browser would see: the scripts and styles, the title and the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.found: dict[str, str] = {}
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag in ("script", "style", "title"):
            self.inside.append(attributes.get("id") or tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style", "title"):
            self.inside.pop()

    def handle_data(self, data):
        if self.inside:
            self.found[self.inside[-1]] = self.found.get(self.inside[-1], "") + data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def embedded(page: str) -> dict:
    return json.loads(read(page).found["data"])


def unpack(packed: str, n_layer: int, n_head: int, T: int) -> np.ndarray:
    """Weights again from the text, by the words of pack_weights."""
    values = iter(base64.b64decode(packed))
    weights = np.zeros((n_layer, n_head, T, T))
    rows, columns = np.tril_indices(T)
    for layer, head in np.ndindex(n_layer, n_head):
        for i, j in zip(rows, columns, strict=True):
            value = next(values)
            if value >= 192:
                value = 192 + (value - 192) * 256 + next(values)
            weights[layer, head, i, j] = value / 1000
    assert next(values, None) is None
    return weights


# ---------------------------------------------------------------- tests


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_weights_come_back_to_half_a_thousandth(n_layer, n_head, T, seed):
    random = np.random.default_rng(seed)
    weights = np.tril(random.dirichlet(np.full(T, 0.3), size=(n_layer, n_head, T)))
    back = unpack(pack_weights(weights.astype(np.float32)), n_layer, n_head, T)
    assert np.abs(back - weights).max() <= 0.0005 + 1e-6


def test_every_thousandth_survives():
    values = np.arange(1001) / 1000
    weights = np.zeros((1, 1001, 2, 2))
    weights[0, :, 1, 0], weights[0, :, 1, 1] = values, 1 - values
    assert np.array_equal(unpack(pack_weights(weights), 1, 1001, 2).round(3), weights.round(3))


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), min_size=1, max_size=30))
def test_any_text_stays_text(text):
    block = embed_json({"tokens": list(text)})
    assert json.loads(block)["tokens"] == list(text)
    assert not re.search(r"[<>&\u2028\u2029\ud800-\udfff]", block)


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(
        st.text(st.characters(), min_size=1, max_size=20),
        st.sampled_from(
            [
                "</script><b>&\"'",
                "<!--<script>",
                "{{script}}",
                "\\1\\g<0>",
                "🌕é\u202e",
                "]]>",
                "\r\0",
            ]
        ),
    )
)
def test_a_page_of_any_text_holds_that_text_and_nothing_of_it_as_markup(text):
    plain = read(build_page(small_page()))
    page = build_page(small_page(text, title=text))
    page.encode("utf-8")
    found = read(page)
    assert json.loads(found.found["data"])["texts"][0]["tokens"] == ["\n", *text]
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert found.found["script"] == plain.found["script"]


def test_lone_surrogates_can_be_written(tmp_path):
    write_page(tmp_path / "page.html", small_page("月\ud800光", title="月\ud800"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert embedded(page)["texts"][0]["tokens"][2] == "\ud800"


def test_numbers_that_json_does_not_have_become_null():
    nothing = {"val_loss": math.nan, "loss": [[0, math.inf, np.float32(2.5)], [1, None, 3]]}
    page = build_page(small_page(run=nothing))
    assert embedded(page)["run"] == {"val_loss": None, "loss": [[0, None, 2.5], [1, None, 3]]}

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(read(page).found["data"], parse_constant=refuse)


def test_policy_allows_the_page_itself_and_no_network():
    reader = read(build_page(small_page()))
    policy = next(a["content"] for tag, a in reader.tags if "http-equiv" in a)
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    for name, kind in (("script-src", "script"), ("style-src", "style")):
        digest = hashlib.sha256(reader.found[kind].encode("utf-8")).digest()
        assert directives[name] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert directives["img-src"] == "data:"


def test_nothing_in_the_page_points_to_another_place():
    page = build_page(made_up_page())
    for tag, attributes in read(page).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
        assert not any(name.startswith("on") for name in attributes), tag
        assert "style" not in attributes, tag
    addresses = set(re.findall(r"https?://[\w./]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"@import|url\(|innerHTML|insertAdjacentHTML|document\.write", page)


def test_texts_carry_what_they_are_given():
    maps = made_up_maps("月光", 2, 1, (0, 10, 30))
    predictions = made_up_predictions("月光")
    (text,) = page_texts({"a": maps}, {"a": predictions})
    assert [snapshot["step"] for snapshot in text["snapshots"]] == [0, 10, 30]
    assert (text["n_layer"], text["n_head"], text["tokens"]) == (2, 1, ["\n", "月", "光"])
    weights = unpack(text["snapshots"][2]["weights"], 2, 1, 3)
    assert np.abs(weights - maps[2].weights).max() < 0.00051
    assert text["predictions"][1][0] == list(predictions[1][0])


def test_cuts_are_grouped_by_what_was_cut():
    cut = {"query": 2, "key": 1, "top": [("，", 0.81), ("\n", 0.0404)]}
    packed = pack_cuts(
        [
            {"layer": 1, "head": 2, "delta": -0.2134, **cut},
            {"layer": None, "head": None, "delta": None, **cut},
            {"layer": 1, "head": 2, "delta": math.nan, **cut},
        ]
    )
    assert packed == [
        {
            "layer": 1,
            "head": 2,
            "rows": [[2, 1, -213, "，\n", 810, 40], [2, 1, None, "，\n", 810, 40]],
        },
        {"layer": None, "head": None, "rows": [[2, 1, None, "，\n", 810, 40]]},
    ]


def test_size_of_a_default_run(tmp_path):
    """Three texts of 24, 24 and 64 characters, 24 heads, 16 snapshots, with all cuts."""
    maps = {
        str(n): made_up_maps(text, 3, 8, tuple(range(0, 1600, 100)))
        for n, text in enumerate(PROBES)
    }
    predictions = {str(n): made_up_predictions(text) for n, text in enumerate(PROBES)}
    cuts = {name: made_up_cuts(maps[name], predictions[name]) for name in maps}
    data = made_up_page() | {"texts": page_texts(maps, predictions, cuts)}
    path = tmp_path / "attention.html"
    size = write_page(path, data)
    assert size == path.stat().st_size <= 3_000_000
    assert b"\r" not in path.read_bytes()


def test_a_failed_write_leaves_the_old_page(tmp_path):
    path = tmp_path / "attention.html"
    write_page(path, small_page())
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_page(path, small_page(run={"config": {"seed": object()}}))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["attention.html"]


# ---------------------------------------------------------------- the benchmark


def test_the_benchmark_builds_the_page_that_it_speaks_of():
    (text,) = benchmark.made_up_texts()
    assert (len(text["tokens"]) - 1, text["n_layer"] * text["n_head"]) == (64, 16)
    assert len({snapshot["weights"] for snapshot in text["snapshots"]}) == 20
    build_page({"texts": [text]})


def test_the_benchmark_says_what_is_missing(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=r"attention.html: run `python view.py"):
        benchmark.main([str(tmp_path)])
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="run `pip install -r requirements-dev.txt`"):
        benchmark.main([])


def test_the_browser_is_the_named_one_or_one_on_the_path_or_playwrights_own(monkeypatch, tmp_path):
    own = tmp_path / "chrome"
    chromium = SimpleNamespace(executable_path=str(own))
    playwright = SimpleNamespace(chromium=chromium)
    found = {"google-chrome": "/usr/bin/google-chrome"}
    monkeypatch.setattr("shutil.which", found.get)
    monkeypatch.setenv("CHROMIUM", "/opt/chromium")
    assert benchmark.find_browser(playwright) == "/opt/chromium"
    monkeypatch.delenv("CHROMIUM")
    assert benchmark.find_browser(playwright) == "/usr/bin/google-chrome"
    found.clear()
    with pytest.raises(UsageError, match="run `python -m playwright install chromium`"):
        benchmark.find_browser(playwright)
    own.touch()
    assert benchmark.find_browser(playwright) == str(own)


def test_the_page_and_the_terminal_name_the_heads_alike():
    words = json.loads((PARTS / "words.json").read_text(encoding="utf-8"))
    for at, language in enumerate(("zh", "en")):
        kinds = {kind: names[at] for kind, names in (ATLAS_KINDS | {"mixed": MIXED}).items()}
        assert words[language]["kinds"] == kinds
