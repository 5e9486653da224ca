"""Forms, acrostics and rhymes: what the masks let through is checked without them."""

import random
import re

import pytest
import torch

from data.corpus import POEMS, read_documents
from data.vocabulary import DataError, Vocabulary
from model.choose import Sampling
from model.generate import Engine
from model.gpt import GPT, GPTConfig
from writing.forms import (
    FORMS,
    FormMask,
    RhymeMask,
    acrostic_form,
    both,
    find_form,
    form_of,
    full_width,
)
from writing.rhymes import Rhymes, rhyme_words

SHAPES = {
    "五绝": r"(\w{5}，\w{5}。){2}",
    "七绝": r"(\w{7}，\w{7}。){2}",
    "五律": r"(\w{5}，\w{5}。){4}",
    "七律": r"(\w{7}，\w{7}。){4}",
}
RHYMES = ["东风中空红同通宫", "光霜乡长香阳凉郎", "流楼秋愁游头州舟"]
OTHERS = "山水花鸟明月天地人心白日青云春夜"


def rhymed_poems(count: int = 300) -> list[str]:
    """Poems of four lines of five random characters whose even lines end in one of RHYMES."""
    rng, poems = random.Random(0), []
    for _ in range(count):
        lines = ["".join(rng.sample(OTHERS, 4)) for _ in range(4)]
        ends = rng.sample(rng.choice(RHYMES), 3)
        a, b, c, d = (line + end for line, end in zip(lines, ["山", *ends], strict=True))
        poems.append(f"{a}，{b}。{c}，{d}。")
    return poems


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.of(["，。？" + "".join(RHYMES) + OTHERS])


@pytest.fixture(scope="module")
def engine(vocabulary) -> Engine:
    """A model with random weights: it knows no form, so every right place is the masks' doing."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(len(vocabulary), 65, 1, 2, 16))
    torch.nn.init.normal_(model.lm_head.common.weight)
    return Engine(model)


def write(engine, vocabulary, mask, prompt="", count=200) -> list[str]:
    ids = vocabulary.encode("\n" + prompt)
    found = engine.generate([ids] * count, 80, Sampling(1.5), stop=0, allowed=mask)
    return [prompt + vocabulary.decode(new).removesuffix("\n") for new in found]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("prompt", ["", "明月"])
def test_every_poem_has_its_form(engine, vocabulary, name, prompt):
    poems = write(engine, vocabulary, FormMask(FORMS[name], vocabulary), prompt)
    assert len(set(poems)) == 200
    for poem in poems:
        assert re.fullmatch(SHAPES[name], poem) and poem.startswith(prompt)
        assert form_of(poem) == FORMS[name]


@pytest.mark.parametrize("name", FORMS)
def test_every_line_begins_with_its_character_of_the_acrostic(engine, vocabulary, name):
    acrostic = "春山秋月东白日流"[: FORMS[name].lines]
    form = acrostic_form(acrostic, FORMS[name])
    for poem in write(engine, vocabulary, FormMask(form, vocabulary, acrostic)):
        assert re.fullmatch(SHAPES[name], poem)
        assert "".join(line[0] for line in re.findall(r"\w+", poem)) == acrostic


def test_the_length_of_an_acrostic_decides_the_form():
    assert acrostic_form("春夏秋冬", None) == FORMS["五绝"]
    assert acrostic_form("春夏秋冬东西南北", None) == FORMS["五律"]
    for wrong, form in (("春夏秋", None), ("春夏秋冬", FORMS["七律"]), ("，。，。", None)):
        with pytest.raises(DataError, match=wrong):
            acrostic_form(wrong, form)


def test_names_of_forms():
    for name, pinyin in zip(FORMS, ["wujue", "QIJUE", "wulü", "qilu\u0308"], strict=True):
        assert find_form(pinyin) is find_form(name) is FORMS[name]
    with pytest.raises(DataError, match="sonnet"):
        find_form("sonnet")


def test_every_poem_of_the_corpus_has_a_form():
    assert all(form_of(poem) for poem in read_documents(POEMS))


@pytest.mark.parametrize(
    "poem",
    [
        "",
        "白日依山尽",
        "白日依山尽，黄河入海流。",
        "白日依山尽。黄河入海流，欲穷千里目，更上一层楼。",
    ],
)
def test_no_form(poem):
    assert form_of(poem) is None


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("明月光，", "character 4"), ("明月光天地人", "character 6"), ("明" * 25, "25 characters")],
)
def test_a_prompt_that_does_not_fit_is_refused(vocabulary, prompt, said):
    with pytest.raises(DataError, match=said):
        FormMask(FORMS["五绝"], vocabulary).check(prompt)


def test_a_prompt_against_the_acrostic_is_refused(vocabulary):
    mask = FormMask(FORMS["五绝"], vocabulary, "春花秋月")
    mask.check("春山水花鸟，花")
    with pytest.raises(DataError, match="character 1 .* 春"):
        mask.check("秋山")


def test_a_vocabulary_without_punctuation_of_verse_is_refused():
    with pytest.raises(DataError, match="，"):
        FormMask(FORMS["五绝"], Vocabulary.of(["to be or not to be."]))


def test_half_width_punctuation_is_read_as_full_width(vocabulary):
    assert full_width("明月, 山水.花?", vocabulary) == "明月，山水。花？"
    assert full_width("\u3000明\t月｡\xa0", vocabulary) == "明月。"
    assert full_width("明\n月", vocabulary) == "明\n月"
    english = Vocabulary.of(["to be, or not to be."])
    assert full_width("to be, or", english) == "to be, or"


def test_rhyme_words_end_the_even_lines():
    assert rhyme_words("床前明月光，疑是地上霜。举头望明月，低头思故乡。") == ["霜", "乡"]


def test_planted_rhyme_groups_are_found():
    rhymes = Rhymes(rhymed_poems())
    for group in RHYMES:
        assert len({rhymes.group(character) for character in group}) == 1
    assert len({rhymes.group(group[0]) for group in RHYMES}) == 3
    assert rhymes.group("山") == -1
    assert rhymes.rhymed("山山山山山，水水水水东。鸟鸟鸟鸟鸟，花花花花风。")
    assert not rhymes.rhymed("山山山山山，水水水水东。鸟鸟鸟鸟鸟，花花花花霜。")


def test_the_tang_poets_rhyme_groups_are_found():
    rhymes = Rhymes(read_documents(POEMS)[::4])
    for group in ("东风中空", "霜乡光阳", "流楼秋愁", "花家斜霞", "来开台梅"):  # 平水韵
        assert len({rhymes.group(character) for character in group}) == 1
    assert rhymes.group("东") != rhymes.group("冬")  # one sound today, two then


@pytest.mark.parametrize("name", FORMS)
def test_even_lines_rhyme_and_no_rhyme_comes_twice(engine, vocabulary, monkeypatch, name):
    monkeypatch.setattr(Rhymes, "ENOUGH", 8)
    rhymes = Rhymes(rhymed_poems())
    mask = both([FormMask(FORMS[name], vocabulary), RhymeMask(rhymes, vocabulary)])
    for poem in write(engine, vocabulary, mask):
        assert re.fullmatch(SHAPES[name], poem) and rhymes.rhymed(poem)
        assert len(set(rhyme_words(poem))) == FORMS[name].lines // 2


def test_too_few_poems_to_learn_rhymes_from_are_refused(vocabulary):
    with pytest.raises(DataError, match="too few training poems to learn rhymes from"):
        RhymeMask(Rhymes(rhymed_poems()), vocabulary)  # seven or eight characters a rhyme


def test_a_rhyme_goes_on_from_that_of_the_prompt(engine, vocabulary, monkeypatch):
    monkeypatch.setattr(Rhymes, "ENOUGH", 8)
    rhymes = Rhymes(rhymed_poems())
    mask = both([RhymeMask(rhymes, vocabulary), FormMask(FORMS["五绝"], vocabulary)])
    for poem in write(engine, vocabulary, mask, "山水花鸟明，白日青云霜。"):
        assert poem[-2] in RHYMES[1].replace("霜", "")
    # The poems say nothing of what rhymes with 山: then any character will do.
    poems = write(engine, vocabulary, mask, "山水花鸟明，白日青云山。")
    assert len({poem[-2] for poem in poems}) > 20
