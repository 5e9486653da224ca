"""Reading texts, the vocabulary, and the split, which must never let a poem slip across."""

import random
import re
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.corpus import (
    EXTRA_POEMS,
    FOLDS,
    POEMS,
    Corpus,
    opening,
    read_documents,
    read_texts,
    verse_lines,
)
from data.vocabulary import DataError, UnknownCharacterError, Vocabulary
from tests.conftest import PROBE


@pytest.fixture(scope="module")
def poems() -> list[str]:
    return read_documents(POEMS)


# Reading


@pytest.mark.parametrize(
    "data",
    [
        "床前\n月光\n".encode(),
        "床前\r\n月光\r\n".encode(),
        "床前\r月光".encode(),
        "\ufeff床前\n\n  \n月光".encode(),
        "床前 \n月光\t\n".encode(),
    ],
)
def test_byte_order_mark_and_carriage_returns_vanish(tmp_path, data):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    assert read_documents(path) == ["床前", "月光"]


def test_only_line_feeds_part_documents(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("床\x0c前\u2028月\x85光\n", encoding="utf-8", newline="\n")
    assert read_documents(path) == ["床\x0c前\u2028月\x85光"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        ("床前明月光".encode("gbk"), r"not UTF-8 text \(byte 0\)"),
        ("床前".encode("utf-16"), "not UTF-8"),
        (b"ab\0cd", "is not text"),
    ],
)
def test_other_files_get_a_clear_message(tmp_path, data, says):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=says):
        read_documents(path)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text("月光\r\n \t\ufeff\0床", max_size=30).map(str.encode))
def test_any_file_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(data)
    try:
        documents = read_documents(path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    assert documents and all(document.strip() for document in documents)
    assert not set("\r\n\0") & set("".join(documents))
    kept = "".join(data.decode("utf-8-sig").split())
    assert "".join("".join(documents).split()) == kept  # white space alone is lost


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            read_documents(path)


# Vocabulary


def test_vocabulary_is_every_character_once_behind_the_boundary(poems):
    vocabulary = Vocabulary.of(poems)
    assert vocabulary.characters[0] == "\n"
    assert set(vocabulary.characters) == set("".join(poems)) | {"\n"}
    assert len(vocabulary) == len(set(vocabulary.characters))
    assert vocabulary.characters == Vocabulary.of(reversed(poems)).characters
    assert "月" in vocabulary and "牀" not in vocabulary


def test_unknown_character_is_named_with_the_form_to_use():
    vocabulary = Vocabulary.of(["床前明月光"])
    with pytest.raises(UnknownCharacterError, match=r"牀 \(U\+7240\), character 3.*writes 床"):
        vocabulary.encode("明月牀")
    with pytest.raises(UnknownCharacterError, match="X .*not in the corpus"):
        vocabulary.encode("X")
    with pytest.raises(UnknownCharacterError, match=r"invisible character \(U\+200B\)"):
        vocabulary.encode("\u200b")


@settings(deadline=None)
@given(st.text(max_size=40), st.text(st.sampled_from("\n床前明月光🌙\u0301"), max_size=40))
def test_encoding_and_decoding_are_each_others_inverse_or_the_character_is_named(text, known):
    vocabulary = Vocabulary(["\n", *sorted(set("床前明月光🌙\u0301") | set(text[::2]) - {"\n"})])
    assert vocabulary.decode(vocabulary.encode(known)) == known
    unknown = [character for character in text if character not in vocabulary]
    if not unknown:
        assert vocabulary.decode(vocabulary.encode(text)) == text
        return
    with pytest.raises(UnknownCharacterError) as raised:
        vocabulary.encode(text)
    at = text.removeprefix("\n").index(unknown[0]) + 1
    assert f"(U+{ord(unknown[0]):04X}), character {at} " in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("characters", ["", "ab", "\naa"])
def test_what_is_no_vocabulary(characters):
    with pytest.raises(DataError):
        Vocabulary(characters)


@settings(deadline=None)
@given(st.text(st.sampled_from("\n床前明月光🌙\u0301天地"), max_size=40))
def test_a_whole_text_is_encoded_as_character_by_character(text):
    vocabulary = Vocabulary(["\n", *"床前明月光🌙\u0301"])
    try:
        expected = vocabulary.encode(text)
    except UnknownCharacterError as error:
        with pytest.raises(UnknownCharacterError, match=re.escape(str(error))):
            vocabulary.encode_array(text)
    else:
        assert vocabulary.encode_array(text).tolist() == expected


# Split

FILLING = [f"{n}，。" for n in range(200)]


def sides(documents, fold=0, probes=()) -> dict[str, bool]:
    """Document -> whether it is held out."""
    corpus = Corpus(documents, fold, probes)
    assert len(corpus.train) + len(corpus.val) == len(corpus.documents)
    assert not set(corpus.train) & set(corpus.val)
    return dict.fromkeys(corpus.train, False) | dict.fromkeys(corpus.val, True)


def test_split_depends_neither_on_order_nor_on_other_documents(poems):
    some = poems[:2000]
    whole = sides(some)
    shuffled = random.Random(0).sample(some, len(some))
    assert sides(shuffled) == whole
    assert sides(some[::2]) == {d: whole[d] for d in some[::2]}


def test_split_stays_what_it_was():
    """Which poems are held out must not change between versions: samples and maps of old
    checkpoints would then be judged on poems they have seen."""
    documents = [
        f"{c}一二三四，五六七八九。" for c in "甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申酉戌亥"
    ]
    fold_of = {d: fold for fold in range(FOLDS) for d in Corpus(documents + FILLING, fold).val}
    assert "".join(str(fold_of[d]) for d in documents) == "4462992333106132856366"


def test_each_document_is_held_out_in_exactly_one_fold(poems):
    some = poems[:3000]
    held = Counter(d for fold in range(FOLDS) for d in Corpus(some, fold).val)
    assert held == Counter(some)


def test_a_tenth_is_held_out(poems):
    for fold in (0, 7):
        share = len(Corpus(poems, fold).val) / len(poems)
        assert abs(share - 1 / FOLDS) < 4 * (0.09 / len(poems)) ** 0.5  # four standard deviations


def test_versions_of_a_poem_stay_on_one_side():
    couplet = "床前看月光，疑是地上霜。"
    versions = [couplet + f"举头望山{c}，低头思故乡。" for c in "月川石水云天日木风"]
    for fold in range(FOLDS):
        found = sides([*versions, *FILLING], fold)
        assert len({found[v] for v in versions}) == 1


def test_poems_of_the_probes_are_always_held_out(poems):
    sharing = [poem for poem in poems if verse_lines(PROBE) & verse_lines(poem)]
    assert sharing  # the shipped corpus has the poem in another wording
    some = poems[::20] + sharing
    folds = [set(Corpus(some, fold).val) for fold in (0, 3, 6)]
    assert any(not set(sharing) <= held for held in folds)  # without the probes they would be seen
    for fold, held in zip((0, 3, 6), folds, strict=True):
        corpus = Corpus(some, fold, [PROBE])
        assert set(corpus.val) == held | set(sharing)  # all of them, and nothing else moved
        assert not set(sharing) & set(corpus.train)


def test_a_probe_in_another_script_holds_out_what_holds_it(tmp_path):
    probe = "the moon of old with some light"
    others = [f"{n} words with some light of the moon" for n in range(300)]
    before = sides([probe + ", he said", *others])
    after = sides([probe + ", he said", *others], probes=[probe])
    assert after == before | {probe + ", he said": True}
    # What is short stands in many documents.
    assert sides(others, probes=["moon"]) == sides(others)


def test_the_opening_and_the_lines_of_a_poem():
    assert opening("床前看月光，疑是地上霜。举头望山月，低头思故乡。") == "床前看月光，疑是地上霜"
    assert opening("no such mark") == "no such mark"
    assert verse_lines("床前看月光，疑是地上霜。短，") == {"床前看月光", "疑是地上霜"}
    assert not verse_lines("words with letters")


@pytest.mark.parametrize("documents", [["月"], ["月光"] * 50])
def test_a_text_that_cannot_be_parted(documents):
    with pytest.raises(DataError, match="too few documents"):
        Corpus(documents)


# Extra documents


def test_extra_documents_leave_the_split_and_the_vocabulary_as_they_are(poems):
    some = poems[:400]
    for extra in ([], poems[400:800]):
        corpus = Corpus(some, 3, [PROBE], extra)
        assert dict.fromkeys(corpus.train, False) | dict.fromkeys(corpus.val, True) == sides(
            some, 3, [PROBE]
        )
        assert corpus.vocabulary.characters == Vocabulary.of(some).characters
    assert 0 < len(corpus.extra) < 400  # the others have characters that the first 400 do not have


@pytest.mark.parametrize(
    "version",
    [
        "{0}",
        "{0}别有天地非人间。",
        "天地一沙鸥，{1}。",  # a line of it
        "低头思故乡，天地一沙鸥。",  # a line of the probe
        "天地一沙鸥，鬱鬱涧底松。",  # 鬱 is not in the text
    ],
)
def test_no_extra_document_has_to_do_with_a_held_out_one(poems, version):
    some = [*poems[:300], "别有天地非人间，一沙鸥头涧底松。"]
    held_out = Corpus(some, 3, [PROBE]).val[5]
    document = version.format(held_out, held_out.split("，")[0])
    other = "天地一沙鸥，涧底松非人。"
    assert Corpus(some, 3, [PROBE], [other, document]).extra == [other]


def test_extra_documents_in_another_script():
    words = [f"{n} words of the moon, with some light" for n in range(300)]
    probe = "words of the sun, with some light"
    held_out = Corpus(words, 3, [probe]).val[0]
    extra = [held_out, f"50 {probe}", "1 sun of words"]
    assert Corpus([*words, "u"], 3, [probe], extra).extra == ["1 sun of words"]


def test_moving_a_document_from_one_text_to_the_other_is_noticed(tmp_path):
    digests = set()
    for data, extra in (("一\n二\n", "三\n"), ("一\n", "二\n三\n"), ("一\n二\n三\n", None)):
        (tmp_path / "data.txt").write_text(data, encoding="utf-8")
        (tmp_path / "extra.txt").write_text(extra or "", encoding="utf-8")
        names = [str(tmp_path / "data.txt"), str(tmp_path / "extra.txt") if extra else ""]
        documents, more, digest = read_texts(*names)
        assert "".join(documents + more) == "一二三"
        digests.add(digest)
    assert len(digests) == 3


def test_the_shipped_extra_poems_are_no_versions_of_shipped_ones(poems):
    extra = read_documents(EXTRA_POEMS)
    assert len(set(extra)) == len(extra) and set("".join(extra)) <= set("".join(poems))
    lines_of = [set(re.findall("[^，。]+", poem)) for poem in poems]
    having = defaultdict(set)
    for i, lines in enumerate(lines_of):
        for line in lines:
            having[line].add(i)
    for poem in extra:
        lines = set(re.findall("[^，。]+", poem))
        shared = Counter(i for line in lines for i in having[line])
        assert all(2 * n < min(len(lines), len(lines_of[i])) for i, n in shared.items()), poem
