"""Settings: defaults < file < flags; every mistake named; what is written is read back."""

import dataclasses
import io
import math
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import train_settings
from command_line import (
    Parser,
    UsageError,
    add_settings,
    nearest,
    one_line,
    read_settings,
    run,
    setting,
    to_toml,
)
from tests.conftest import ROOT, run_script


@dataclasses.dataclass(frozen=True)
class Settings:
    name: str = setting("tang", "a word")
    count: int = setting(3, "a number")
    rate: float = setting(0.5, "a rate")
    quick: bool = setting(False, "a switch")
    texts: tuple[str, ...] = setting((), "some texts")


def parse(*argv: str) -> dict:
    parser = Parser(prog="some.py")
    add_settings(parser, Settings)
    return vars(parser.parse_args(list(argv)))


def test_both_ways_to_give_a_flag():
    assert parse("--count", "4", "--rate=1e-3") == {"count": 4, "rate": 1e-3}
    assert parse("--name=a=b") == {"name": "a=b"}
    assert parse("--quick", "true") == {"quick": True} and parse("--quick=False") == {
        "quick": False
    }
    assert parse("--texts", "床前", "月光", "--count", "1") == {
        "texts": ["床前", "月光"],
        "count": 1,
    }
    assert parse("--count=-4") == {"count": -4} and parse("--rate", "-1") == {"rate": -1.0}
    assert parse() == {}  # what was not said does not override the file


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--cuont", "3"], "unknown argument --cuont; did you mean --count"),
        (["--cuont=3"], "unknown argument --cuont; did you mean --count"),
        (["--rat", "1"], "unknown argument --rat; did you mean --rate"),  # no abbreviations
        (["--zzzzzz"], "unknown argument --zzzzzz; see"),
        (["--count"], "--count: expected one argument"),
        (["--count", "three"], "--count: invalid int value: 'three'"),
        (["--count=3.5"], "--count: invalid int value"),
        (["--rate="], "--rate: invalid float value"),
        (["--quick", "maybe"], "must be true or false, not maybe"),
        (["stray"], "unknown argument stray"),
    ],
)
def test_wrong_flags_are_named(argv, says):
    with pytest.raises(UsageError, match=says):
        parse(*argv)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("cuont = 3", "unknown key cuont in .*; did you mean count"),
        ("[train]\ncount = 3", "unknown key train"),
        ("count = 3.5", "count in .* must be of type int, not 3.5"),
        ("count = true", "must be of type int, not True"),
        ("rate = '1'", "must be of type float, not '1'"),
        ("quick = 1", "must be of type bool"),
        ("name = 3", "must be of type str"),
        ("texts = '床前'", "must be of type list"),
        ("texts = [1]", "each of texts in .* must be of type str"),
        ("name = 'a\\u0000'\nname = 1", "not valid TOML"),
        ('name = "a\\u0000"', "NUL"),
        ("rate = 1" + "0" * 400, "must be of type float"),
        ("count = 1" + "0" * 5000, "not valid TOML"),
        ("count = " + "[" * 5000, "not valid TOML"),
        ("count 3", "not valid TOML"),
        ("count = 3\ncount = 4", "not valid TOML"),
    ],
)
def test_wrong_files_are_named(folder, toml, says):
    path = folder / "config.toml"
    path.write_text(toml, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_settings(path, Settings)


def test_unreadable_files(tmp_path):
    path = tmp_path / "config.toml"
    for make in (lambda: None, path.mkdir):
        make()
        with pytest.raises(UsageError, match="cannot read the config"):
            read_settings(path, Settings)
    other = tmp_path / "other.toml"
    other.write_bytes('name = "床前"'.encode("gbk"))
    with pytest.raises(UsageError, match="not valid TOML in UTF-8"):
        read_settings(other, Settings)


def test_byte_order_mark_and_whole_numbers_for_rates(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('\ufeffrate = 2\ntexts = ["床前"]\n', encoding="utf-8")
    found = read_settings(path, Settings)
    assert found == {"rate": 2.0, "texts": ("床前",)} and type(found["rate"]) is float


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@settings(deadline=None)
@given(
    st.builds(
        Settings,
        name=TEXT,
        count=st.integers(-(2**63), 2**63 - 1),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        quick=st.booleans(),
        texts=st.lists(TEXT, max_size=4).map(tuple),
    )
)
def test_settings_survive_the_way_to_a_file_and_back(tmp_path_factory, given_settings):
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_bytes(to_toml(given_settings).encode())
    assert Settings(**read_settings(path, Settings)) == given_settings


@settings(deadline=None)
@given(st.binary(max_size=80) | TEXT.map(str.encode) | st.from_regex(r"(name|count|rate) = .*"))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        Settings(**read_settings(path, Settings))
    except UsageError as error:
        assert str(path) in str(error)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["--count", "--rate", "--quick", "--texts", "--nmae", "3", "-1"]) | TEXT
    )
)
def test_any_flags_are_read_or_refused(argv):
    assume(not {"-h", "--help"} & set(argv))
    try:
        found = parse(*argv)
    except UsageError:
        return
    assert set(found) <= {field.name for field in dataclasses.fields(Settings)}
    assert type(found.get("count", 0)) is int and type(found.get("rate", 0.0)) is float


# The settings of a training


def test_defaults_yield_to_the_file_and_the_file_to_flags(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("n_layer = 5\nmax_iters = 7\n", encoding="utf-8")
    config, resume, overwrite = train_settings.parse([str(path), "--max_iters=9", "--overwrite"])
    assert (config.n_layer, config.max_iters, config.n_head) == (
        5,
        9,
        train_settings.TrainConfig.n_head,
    )
    assert (resume, overwrite) == (False, True)


@pytest.mark.parametrize("name", ["tang", "smoke", "full"])
def test_shipped_configs_are_valid(name):
    path = ROOT / "configs" / f"{name}.toml"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    config, *_ = train_settings.parse([str(path)])
    assert config.out_dir == f"out/{name}"
    assert all("\\" not in part for part in (config.out_dir, config.data))  # for every system


def test_a_resumed_run_keeps_its_settings_but_for_flags(tmp_path):
    former = dataclasses.replace(
        train_settings.TrainConfig(), n_layer=2, max_iters=5, out_dir="elsewhere"
    )
    (tmp_path / "config.toml").write_text(to_toml(former), encoding="utf-8")
    config, *_ = train_settings.parse(["--resume", f"--out_dir={tmp_path}", "--max_iters=8"])
    assert config == dataclasses.replace(former, max_iters=8, out_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_embd": 130, "n_head": 4}, "not divisible"),
        ({"max_iters": 0}, "max_iters must be above zero"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"cooldown": 1.5}, "cooldown"),
        ({"muon_momentum": 1.0}, "muon_momentum is a share, 0 to below 1"),
        ({"muon_momentum": math.nan}, "muon_momentum"),
        ({"fold": 10}, "fold must be 0 to 9"),
        ({"seed": 1 << 63}, "seed is too large"),
        ({"n_embd": 10**400}, "n_embd is too large"),
        ({"out_dir": ""}, "out_dir is empty"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_values_are_checked(wrong, says):
    with pytest.raises(UsageError, match=says):
        train_settings.TrainConfig(**wrong)


def test_every_setting_has_help_and_help_shows_it():
    outcome = run_script("train.py", "--help")
    shown = " ".join(outcome.out.split())
    assert outcome.code == 0
    for field in dataclasses.fields(train_settings.TrainConfig):
        assert f"--{field.name} " in shown and field.metadata["help"].split()[0] in shown


# Errors


def test_nearest():
    assert nearest("n_layr", ["n_layer", "n_head"]) == "; did you mean n_layer?"
    assert nearest("zzz", ["n_layer"]) == ""


def outcome_of(main, monkeypatch, *expected, argv=()):
    monkeypatch.setattr(sys, "argv", ["some/where/x.py", *argv])
    with pytest.raises(SystemExit) as ended:
        run(main, *expected)
    return ended.value.code


def raising(error: BaseException):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("two\nlines"), 2, "x.py: error: two lines\n"),
        (KeyError("expected"), 2, "x.py: error: 'expected'\n"),
        (OSError(28, "No space left on device"), 2, "x.py: error: cannot use a file: No space"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "x.py: error: cannot use a/b: Perm"),
        (UnicodeEncodeError("ascii", "床", 0, 1, "no"), 2, "x.py: error: this system's locale"),
        (KeyboardInterrupt(), 130, "\nx.py: interrupted\n"),
    ],
)
def test_errors_end_in_one_line(monkeypatch, capsys, error, code, says):
    assert outcome_of(raising(error), monkeypatch, KeyError) == code
    message = capsys.readouterr().err
    assert message.startswith(says) and message.strip().count("\n") == 0


def test_faults_of_ours_show_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x.py"])
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()), KeyError)


def test_exit_code_is_what_main_returns(monkeypatch):
    assert outcome_of(lambda argv: None, monkeypatch) == 0
    assert outcome_of(lambda argv: 143, monkeypatch) == 143


def test_streams_that_are_closed_are_no_fault(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert outcome_of(lambda argv: print("床"), monkeypatch) == 0
    assert outcome_of(raising(UsageError("wrong")), monkeypatch) == 2


@pytest.mark.parametrize(("console", "received"), [(True, b"?"), (False, "床".encode())])
def test_a_stream_that_lacks_a_character(monkeypatch, console, received):
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="cp1252")
    monkeypatch.setattr(stream, "isatty", lambda: console, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    assert outcome_of(lambda argv: print("床"), monkeypatch) == 0
    assert raw.getvalue().rstrip() == received


def test_arguments_that_the_locale_could_not_decode(monkeypatch, capsys):
    seen = []
    ascii_locale = "床前".encode().decode("ascii", "surrogateescape")
    monkeypatch.setattr("os.fsencode", lambda s: s.encode("ascii", "surrogateescape"))
    assert outcome_of(seen.append, monkeypatch, argv=["--prompt", ascii_locale]) == 0
    assert seen == [["--prompt", "床前"]]
    assert outcome_of(seen.append, monkeypatch, argv=["\udcff"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


def test_one_line_of_any_error():
    assert one_line(ValueError("a\n\n  b")) == "a b"


def test_toml_of_a_training_is_plain_toml(tmp_path):
    text = to_toml(train_settings.TrainConfig(probes=('引"号\\', "\x7f")))
    found = tomllib.loads(text)
    assert found["probes"] == ['引"号\\', "\x7f"] and Path(found["out_dir"]) == Path("out/tang")
