"""Bad input, one table: each case ends in one line on stderr that says what is wrong, exit code 2,
no traceback, and nothing written."""

import os
import pickle
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from maps.capture import load_map, saved_maps
from model.checkpoint import FORMAT, load_checkpoint, save_checkpoint
from tests.conftest import ROOT, finish, run_script, start_script


class Evil:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (open, (str(self.trace), "w"))


TEXTS = {  # name: bytes of a text file that cannot be trained on
    "empty": b"",
    "blank": b" \r\n\n\t\n",
    "gbk": "床前明月光\n疑是地上霜\n".encode("gbk"),
    "utf16": "床前明月光\n疑是地上霜\n".encode("utf-16"),
    "binary": bytes(range(256)) * 40,
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "truncated": "床前明月光\n疑是地上霜".encode()[:-1],
    "flipped": "床前明月光\n疑是地上霜\n".encode().replace("月".encode(), b"\xe6\xdc\x88"),
    "huge_line": "床前明月光，疑是地上霜。".encode() * 50_000,
    "single": "月".encode(),
    "duplicates": "床前明月光，疑是地上霜。\n".encode() * 500,
}
CONFIGS = {
    "unknown_key": b"n_layr = 3",
    "section": b"[train]\nn_layer = 3",
    "wrong_type": b"n_layer = '3'",
    "fraction": b"n_layer = 2.5",
    "number_as_list": b"n_layer = [2]",
    "text_as_list": 'probes = "床前明月光"'.encode(),
    "list_of_numbers": b"probes = [1, 2]",
    "broken": b"n_layer = = 3",
    "unclosed": b'out_dir = "out',
    "twice": b"n_layer = 2\nn_layer = 3",
    "gbk": 'out_dir = "床前"'.encode("gbk"),
    "binary": bytes(range(256)),
    "digits": b"n_layer = 1" + b"0" * 6000,
    "deep": b"probes = " + b"[" * 20_000,
    "zero": b'data = "a\\u0000b"',  # not nul, which Windows takes for a device
    "infinite": b"learning_rate = inf",
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory, tiny_run) -> Path:
    """A folder of files that cannot be used: read only, as all cases share it."""
    bad = tmp_path_factory.mktemp("bad input")
    for name, data in TEXTS.items():
        (bad / f"{name}.txt").write_bytes(data)
    for name, data in CONFIGS.items():
        (bad / f"{name}.toml").write_bytes(data)
    (bad / "folder.txt").mkdir()

    # Runs with one part spoilt.
    state = load_checkpoint(tiny_run / "ckpt.pt")
    whole = (tiny_run / "ckpt.pt").read_bytes()
    at = whole.index(state["model"]["wte.weight"].numpy().tobytes()[:16])
    for name, data in {
        "no_checkpoint": None,
        "empty": b"",
        "text": b"not a checkpoint",
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :],
        "pickle": pickle.dumps(state | {"model": None, "step": Evil(bad / "executed")}),
    }.items():
        folder = bad / name
        folder.mkdir()
        if data is not None:
            (folder / "ckpt.pt").write_bytes(data)
    for name, other in {
        "evil": state | {"step": Evil(bad / "executed")},
        "nanogpt": {"model": state["model"], "iter_num": 3},
        "tensor": torch.ones(3),
        "lacking": {"format": FORMAT, "model": state["model"]},
    }.items():
        (bad / name).mkdir()
        torch.save(other, bad / name / "ckpt.pt")
    sizes = state["model_config"]
    moments = [{k: v[..., :2] for k, v in of.items()} for of in state["optimizer"][0]]
    for name, change in {
        "other_version": {
            "model": {k: v for k, v in state["model"].items() if "distance_bias" not in k}
        },
        "other_moments": {"optimizer": [moments, state["optimizer"][1]]},
        "fewer_moments": {"optimizer": [state["optimizer"][0][1:], state["optimizer"][1]]},
        "other_vocabulary": {"characters": state["characters"][:-2]},
        "other_sizes": {"model_config": sizes | {"n_embd": 32}},
        "no_sizes": {"model_config": sizes | {"n_head": 3}},
    }.items():
        (bad / name).mkdir()
        save_checkpoint(bad / name / "ckpt.pt", state | change)
    (bad / "folder" / "ckpt.pt").mkdir(parents=True)

    # Runs whose maps are spoilt.
    good = load_map(saved_maps(tiny_run)[0][-1])
    weights, tokens = good.weights, np.array(good.tokens, "<U1")
    spoilt = weights.copy()
    spoilt[0, 0, 4, 2] = np.nan
    for name, parts in {
        "maps_object": {"weights": weights.astype(object), "tokens": tokens},
        "maps_shape": {"weights": weights[0], "tokens": tokens},
        "maps_nan": {"weights": spoilt, "tokens": tokens},
        "maps_rows": {"weights": weights * 1.5, "tokens": tokens},
        "maps_lacking": {"weights": weights},
    }.items():
        shutil.copytree(tiny_run, bad / name)
        for path in saved_maps(bad / name)[0]:
            np.savez(path, **parts, step=20, val_loss=7.0)
    shutil.copytree(tiny_run, bad / "maps_truncated")
    for path in saved_maps(bad / "maps_truncated")[0]:
        path.write_bytes(path.read_bytes()[:-200])
    return bad


@dataclass(frozen=True)
class Case:
    """A command line ({bad}, {run} and {tmp} stand for folders) and what its message says."""

    name: str
    script: str
    arguments: tuple[str, ...]
    says: str

    def __str__(self) -> str:
        return f"{self.script.partition('.')[0]}: {self.name}"


def train(name: str, says: str, *arguments: str) -> Case:
    return Case(name, "train.py", arguments, says)


def resume(name: str, says: str) -> Case:
    return Case(f"resume {name}", "train.py", ("--resume", f"--out_dir={{bad}}/{name}"), says)


def sample(name: str, says: str, *arguments: str) -> Case:
    return Case(name, "sample.py", ("--out_dir={run}", *arguments), says)


def view(name: str, says: str, *arguments: str) -> Case:
    return Case(name, "view.py", arguments, says)


def lesson(name: str, says: str, *arguments: str) -> Case:
    return Case(name, "attention.py", arguments, says)


LONG = "月" * 70
UNKNOWN_TEXTS = {  # a text with a character that no poem has: how the message names it
    "traditional form": ("牀前明月光", "牀 (U+7240), character 1 of the text; it writes 床"),
    "emoji": ("明月🌙", "🌙 (U+1F319), character 3"),
    "joined emoji": ("月👨‍👩‍👧", "👨 (U+1F468), character 2"),
    "combining mark": ("e\u0301月", "e (U+0065), character 1"),
    "combining mark behind a known character": ("月\u0301", "(U+0301), character 2"),
    "half-width katakana": ("月ｶ", "ｶ (U+FF76), character 2"),
    "right to left": ("月שלום", "ש (U+05E9), character 2"),
    "right-to-left mark": ("月\u202e", "an invisible character (U+202E)"),
    "control character": ("月\x07", "an invisible character (U+0007)"),
    "zero width": ("月\u200b光", "an invisible character (U+200B), character 2"),
    "letters": ("moon", "m (U+006D), character 1"),
    "number": ("5", "5 (U+0035), character 1"),
}

CASES = [
    # Text files
    train("missing text", "cannot read {tmp}/none.txt: No such file", "--data={tmp}/none.txt"),
    train(
        "missing extra text", "cannot read {tmp}/none.txt: No such", "--extra_data={tmp}/none.txt"
    ),
    train("text below a file", "cannot read", "--data={bad}/single.txt/more"),
    train("folder as text", "cannot read {bad}/folder.txt", "--data={bad}/folder.txt"),
    # Windows says of such a name that there is no file.
    train(
        "name too long", "nnn: " if os.name == "nt" else "too long", f"--data={{tmp}}/{'n' * 300}"
    ),
    train("empty text", "empty.txt is empty: give a text", "--data={bad}/empty.txt"),
    train("blank text", "blank.txt is empty", "--data={bad}/blank.txt"),
    train("GBK text", "gbk.txt is not UTF-8 text (byte 0)", "--data={bad}/gbk.txt"),
    train("UTF-16 text", "utf16.txt is not UTF-8 text", "--data={bad}/utf16.txt"),
    train("binary text", "binary.txt is not UTF-8 text (byte 128)", "--data={bad}/binary.txt"),
    train("picture as text", "picture.txt is not UTF-8", "--data={bad}/picture.txt"),
    train("truncated text", "truncated.txt is not UTF-8", "--data={bad}/truncated.txt"),
    train("flipped byte in a text", "not UTF-8 text (byte 9)", "--data={bad}/flipped.txt"),
    train("one huge line", "too few documents (1)", "--data={bad}/huge_line.txt"),
    train("single character", "too few documents (1)", "--data={bad}/single.txt"),
    train("duplicates only", "too few documents (500)", "--data={bad}/duplicates.txt"),
    # Config files
    train("missing config", "cannot read the config {tmp}/none.toml", "{tmp}/none.toml"),
    train("folder as config", "cannot read the config {bad}", "{bad}"),
    train(
        "unknown key",
        "unknown key n_layr in {bad}/unknown_key.toml; did you mean n_layer?",
        "{bad}/unknown_key.toml",
    ),
    train("section", "unknown key train in", "{bad}/section.toml"),
    train(
        "wrong type",
        "n_layer in {bad}/wrong_type.toml must be of type int",
        "{bad}/wrong_type.toml",
    ),
    train("fraction", "must be of type int, not 2.5", "{bad}/fraction.toml"),
    train("list for a number", "must be of type int, not [2]", "{bad}/number_as_list.toml"),
    train("text for a list", "must be of type list", "{bad}/text_as_list.toml"),
    train("numbers for texts", "must be of type str, not 1", "{bad}/list_of_numbers.toml"),
    train("broken TOML", "is not valid TOML in UTF-8", "{bad}/broken.toml"),
    train("unclosed text", "is not valid TOML in UTF-8", "{bad}/unclosed.toml"),
    train("key given twice", "is not valid TOML in UTF-8", "{bad}/twice.toml"),
    train("GBK config", "is not valid TOML in UTF-8", "{bad}/gbk.toml"),
    train("binary config", "is not valid TOML in UTF-8", "{bad}/binary.toml"),
    train("number of 6,000 digits", "is not valid TOML in UTF-8", "{bad}/digits.toml"),
    train("20,000 brackets", "is not valid TOML in UTF-8", "{bad}/deep.toml"),
    train("NUL in a path", "has a NUL character", "{bad}/zero.toml"),
    train("infinite rate", "learning_rate must be above zero, not inf", "{bad}/infinite.toml"),
    # Values
    train(
        "contradicting sizes", "n_embd 50 is not divisible by n_head 4", "--n_embd=50", "--n_head=4"
    ),
    train("negative size", "n_layer must be at least 1, not -2", "--n_layer=-2"),
    train("no steps", "max_iters must be above zero", "--max_iters=0"),
    train("no batch", "batch_size must be above zero", "--batch_size=0"),
    train("wide beyond memory", "take a smaller n_embd", "--n_embd=4000000"),
    train("deep beyond memory", "take a smaller n_embd", "--n_layer=1000000000"),
    train("block beyond memory", "take a smaller n_embd", "--block_size=1000000000000"),
    train("distances beyond memory", "these sizes need", "--block_size=100000", "--n_layer=100"),
    train("batch beyond memory", "take a smaller n_embd", "--batch_size=10000000000000"),
    train("beyond all machines", "n_embd is too large", f"--n_embd=1{'0' * 400}"),
    train("seed beyond 64 bits", "seed is too large", f"--seed={1 << 64}"),
    train(
        "rate that is no number", "learning_rate must be above zero, not nan", "--learning_rate=nan"
    ),
    train("dropout of everything", "dropout must be in [0, 1), not 1.0", "--dropout=1"),
    train("course that ends too soon", "lr_decay_iters 9 is less than", "--lr_decay_iters=9"),
    train("eleventh fold", "fold must be 0 to 9, not 10", "--fold=10"),
    train("unknown device", "unknown device tpu: choose auto, cpu", "--device=tpu"),
    train("device without number", "unknown device cpu:x: choose auto", "--device=cpu:x"),
    train("device with a colon alone", "unknown device cpu:: choose auto", "--device=cpu:"),
    train("eighth processor", "no device cpu:7: the last one is cpu:0", "--device=cpu:7"),
    train("missing device", "take --device cpu", "--device=cuda:99"),
    train("unknown number format", "unknown dtype float8: choose", "--dtype=float8"),
    # Flags
    train("misspelt flag", "unknown argument --n_layr; did you mean --n_layer?", "--n_layr", "2"),
    train("flag without its value", "--n_layer: expected one argument", "--n_layer"),
    train("empty value", "invalid int value: ''", "--n_layer="),
    train("text for a number", "--max_iters: invalid int value: 'many'", "--max_iters=many"),
    train("fraction for a number", "invalid int value: '1.5'", "--max_iters", "1.5"),
    train("maybe", "must be true or false, not maybe", "--compile=maybe"),
    train("two configs", "unknown argument", "configs/tang.toml", "configs/smoke.toml"),
    train("resume and overwrite", "exclude each other", "--resume", "--overwrite"),
    train("nothing to resume", "no checkpoint", "--resume"),
    train("file as out_dir", "cannot use {bad}/single.txt: ", "--out_dir={bad}/single.txt"),
    train("out_dir below a file", "cannot use {bad}/single.txt", "--out_dir={bad}/single.txt/run"),
    train("empty out_dir", "out_dir is empty: name a folder", "--out_dir="),
    train("empty data", "data is empty: name a text file", "--data="),
    train("empty config", "cannot read the config", ""),
    # Probes
    train("empty probe", "a probe is one line of text", "--probes", ""),
    train("probe of two lines", "a probe is one line of text", "--probes", "床前\n明月"),
    train("probe longer than the block", "longer than block_size 65", "--probes", LONG),
    *(
        train(
            f"probe: {name}", f"the probe {text}: the model does not know {says}", "--probes", text
        )
        for name, (text, says) in UNKNOWN_TEXTS.items()
        if name in ("traditional form", "emoji")
    ),
    # Checkpoints to go on from
    resume("folder", "cannot be read"),
    resume("empty", "is damaged or not a checkpoint"),
    resume("text", "is damaged or not a checkpoint"),
    resume("truncated", "is damaged or not a checkpoint"),
    resume("flipped", "is damaged or not a checkpoint"),
    resume("pickle", "is damaged or not a checkpoint"),
    resume("evil", "is damaged or not a checkpoint"),
    resume("nanogpt", "is no checkpoint of this program"),
    resume("lacking", "lacks or has spoilt: model_config, characters"),
    resume("other_version", "does not fit this model: Error(s) in loading state_dict"),
    resume("other_moments", "the optimizer's state is of other parameters"),
    resume("fewer_moments", "the optimizer's state is of other parameters"),
    # Samples
    *(
        sample(f"prompt: {name}", says, f"--prompt={text}")
        for name, (text, says) in UNKNOWN_TEXTS.items()
    ),
    sample("prompt of two lines", "has a line feed in it", "--prompt=床前\n明月"),
    sample("misspelt flag", "did you mean --prompt?", "--promt", "床前"),
    sample("flag without its value", "--prompt: expected one argument", "--prompt"),
    sample("stray word", "unknown argument 床前", "床前"),
    sample("negative temperature", "temperature must be 0 or above", "--temperature=-1"),
    sample("temperature that is no number", "temperature", "--temperature=nan"),
    sample("infinite temperature", "temperature", "--temperature=inf"),
    sample("hot", "invalid float value: 'hot'", "--temperature=hot"),
    sample("negative top_k", "top_k must be 0 (all) or above", "--top_k=-5"),
    sample("top_p of nothing", "top_p must be above 0", "--top_p=0"),
    sample("top_p beyond all", "top_p must be above 0 and at most 1", "--top_p=1.5"),
    sample("no samples", "num_samples must be 1 to 1,000,000, not 0", "--num_samples=0"),
    sample(
        "no new characters", "max_new_tokens must be 1 to 1,000,000, not -3", "--max_new_tokens=-3"
    ),
    sample("empty form", "--form is empty: give it a value", "--form="),
    sample("empty folder for maps", "--maps is empty: give it a value", "--maps="),
    sample("unknown form", "unknown form 八绝: take 五绝", "--form=八绝"),
    sample("acrostic of three", "acrostic", "--acrostic=春夏秋"),
    sample("acrostic of unknown characters", "does not know 🌙", "--acrostic=春夏秋🌙"),
    sample(
        "run that is not there", "no checkpoint {tmp}/none/ckpt.pt: run", "--out_dir={tmp}/none"
    ),
    *(
        sample(f"checkpoint: {name}", says, f"--out_dir={{bad}}/{name}")
        for name, says in (
            ("folder", "cannot be read"),
            ("empty", "is damaged or not a checkpoint"),
            ("text", "is damaged or not a checkpoint"),
            ("truncated", "is damaged or not a checkpoint"),
            ("flipped", "is damaged or not a checkpoint"),
            ("pickle", "is damaged or not a checkpoint"),
            ("evil", "is damaged or not a checkpoint"),
            ("nanogpt", "is no checkpoint of this program"),
            ("tensor", "is no checkpoint of this program"),
            ("lacking", "lacks or has spoilt: model_config"),
            ("other_vocabulary", "does not fit this model"),
            ("other_version", "does not fit this model"),
            ("other_sizes", "does not fit this model"),
            ("no_sizes", "does not fit this model"),
        )
    ),
    # Looking
    *(
        view(f"text: {name}", says, "{run}", f"--text={text}")
        for name, (text, says) in UNKNOWN_TEXTS.items()
        if name not in ("letters", "number")
    ),
    view("text longer than the block", "the model reads 64", "{run}", f"--text={LONG}"),
    view("text of two lines", "--text takes one line", "{run}", "--text=明月\n明月"),
    view("no name for the page", "html is empty: name a file", "{run}", "--html="),
    view("no name for the picture", "png is empty: name a file", "{run}", "--png="),
    view("no name for the run", "out_dir is empty: name a file", ""),
    view("empty text", "give at least one character", "{run}", "--text="),
    view("unknown query", "it writes 床", "{run}", "--query=牀"),
    view("query of two characters", "--query takes one character", "{run}", "--query=月光"),
    view("empty query", "--query takes one character", "{run}", "--query="),
    view("key without evidence", "--key goes with --evidence", "{run}", "--key=月"),
    view("evidence without query", "--evidence needs --query", "{run}", "--evidence"),
    view("layer without head", "go together", "{run}", "--layer=1"),
    view("layer 0", "layer", "{run}", "--layer=0", "--head=1"),
    view("layer 99", "layer", "{run}", "--layer=99", "--head=1"),
    view("head 99", "head", "{run}", "--layer=1", "--head=99"),
    view("first layer", "invalid int value: 'first'", "{run}", "--layer=first", "--head=1"),
    view("misspelt flag", "did you mean --query?", "{run}", "--qeury", "光"),
    view("flag without its value", "--query: expected one argument", "{run}", "--query"),
    view("two runs", "unknown argument", "{run}", "{bad}"),
    view("run that is not there", "no folder {tmp}/none: train first", "{tmp}/none"),
    view("file as run", "no folder {bad}/single.txt", "{bad}/single.txt"),
    view("page into a missing folder", "none/page.html", "{run}", "--html={tmp}/none/page.html"),
    view("picture into a missing folder", "none/map.png", "{run}", "--png={tmp}/none/map.png"),
    *(
        view(f"run: {name}", says, f"{{bad}}/{name}")
        for name, says in (
            ("no_checkpoint", "no checkpoint"),
            ("truncated", "is damaged or not a checkpoint"),
            ("flipped", "is damaged or not a checkpoint"),
            ("evil", "is damaged or not a checkpoint"),
            ("nanogpt", "is no checkpoint of this program"),
            ("other_vocabulary", "does not fit this model"),
            ("other_version", "does not fit this model"),
            ("maps_object", "is damaged or no attention map"),
            ("maps_lacking", "is damaged or no attention map"),
            ("maps_truncated", "is damaged or no attention map"),
            ("maps_shape", "is no attention map: its weights have type float32 and shape"),
            ("maps_nan", "is no attention map: it has weights that are not numbers"),
            ("maps_rows", "is no attention map: its rows do not sum to 1"),
        )
    ),
    # The lesson
    lesson("exercise that is not there", "1, 2 or 3", "--exercise", "4"),
    lesson("exercise without number", "1, 2 or 3", "--exercise"),
    lesson("misspelt flag", "--self-check", "--selfcheck", "1"),
    lesson("stray word", "床前", "床前"),
    lesson("two questions", "--exercise", "--exercise", "1", "--self-check", "1"),
    lesson("empty number", "1, 2 or 3", "--exercise="),
]


def shown(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below with its size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        found[str(path)] = (status.st_size if path.is_file() else 0, status.st_mtime_ns)
    return found


def command(case: Case, bad: Path, tiny_run: Path, tiny_flags: list[str], tmp: Path) -> list[str]:
    """The case's arguments; a training gets tiny sizes and an out_dir of its own first."""
    places = {"bad": bad, "run": tiny_run, "tmp": tmp}
    arguments = [argument.format(**places) for argument in case.arguments]
    if case.script != "train.py":
        return arguments
    return [*tiny_flags, f"--out_dir={tmp / 'new'}", *arguments]


def judge(case: Case, code: int, out: str, err: str, places: dict[str, Path]) -> None:
    says = case.says.format(**places).replace("/", os.sep)
    assert code == 2, (code, out, err)
    assert err.startswith(f"{case.script}: error: ") and says in err.replace("/", os.sep), err
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert not out and "Traceback" not in err


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input(case, bad, tiny_run, tiny_flags, tmp_path):
    if not (ROOT / case.script).exists():
        pytest.skip(f"no {case.script}")
    if case.name.startswith("picture"):
        pytest.importorskip("matplotlib")
    before = shown(bad), shown(tiny_run)
    arguments = command(case, bad, tiny_run, tiny_flags, tmp_path)
    outcome = run_script(case.script, *arguments)
    places = {"bad": bad, "run": tiny_run, "tmp": tmp_path}
    judge(case, outcome.code, outcome.out, outcome.err, places)
    assert (shown(bad), shown(tiny_run)) == before  # the evil pickles were not executed either
    assert not any(tmp_path.iterdir())


def test_the_table_is_as_large_as_promised():
    assert len(CASES) >= 60 and len({str(case) for case in CASES}) == len(CASES)


REAL = ["train: GBK text", "sample: prompt: traditional form", "attention: misspelt flag"]


def test_the_same_through_real_processes(bad, tiny_run, tiny_flags, tmp_path):
    cases = [case for case in CASES if str(case) in REAL]
    assert len(cases) == len(REAL)
    processes = [
        start_script(case.script, *command(case, bad, tiny_run, tiny_flags, tmp_path))
        for case in cases
    ]
    if sys.platform == "linux":  # other systems have no arguments that are no text
        arguments = (f"--out_dir={tiny_run}", os.fsdecode(b"--prompt=\xff"))
        cases.append(Case("no text", "sample.py", arguments, "is not UTF-8: write it in UTF-8"))
        processes.append(start_script("sample.py", *arguments))
    places = {"bad": bad, "run": tiny_run, "tmp": tmp_path}
    for case, process in zip(cases, processes, strict=True):
        outcome = finish(process)
        judge(case, outcome.code, outcome.out, outcome.err, places)
    assert not any(tmp_path.iterdir())
