"""The counting models against a slow reference in plain Python, and against laws."""

import math
import random
from collections import Counter, defaultdict

import pytest

from data.baselines import unigram_and_bigram
from data.vocabulary import Vocabulary


def reference(train, val, vocabulary):
    """Both losses as the definitions say, one character at a time."""
    seen = "\n" + "\n".join(train) + "\n"
    unseen = "\n" + "\n".join(val) + "\n"
    singles = Counter(seen[1:])
    followers = defaultdict(Counter)
    for a, b in zip(seen, seen[1:], strict=False):
        followers[a][b] += 1

    def unigram(b):
        return (singles[b] + 1) / (len(seen) - 1 + len(vocabulary))

    def bigram(a, b):
        n, k = sum(followers[a].values()), len(followers[a])
        trust = n / (n + k) if n else 0.0
        return (trust * followers[a][b] / n if n else 0.0) + (1 - trust) * unigram(b)

    pairs = list(zip(unseen, unseen[1:], strict=False))
    for a in vocabulary.characters:  # both are probabilities
        assert sum(map(unigram, vocabulary.characters)) == pytest.approx(1)
        assert sum(bigram(a, b) for b in vocabulary.characters) == pytest.approx(1)
    return (
        -sum(math.log(unigram(b)) for _, b in pairs) / len(pairs),
        -sum(math.log(bigram(a, b)) for a, b in pairs) / len(pairs),
    )


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_reference(seed):
    chance = random.Random(seed)
    documents = ["".join(chance.choices("月光床前明霜", k=chance.randint(1, 9))) for _ in range(30)]
    train, val = documents[:20], [*documents[20:], "乡乡"]  # 乡 is never seen in training
    vocabulary = Vocabulary.of([*train, *val])
    assert unigram_and_bigram(train, val, vocabulary) == pytest.approx(
        reference(train, val, vocabulary)
    )


def test_a_text_whose_pairs_are_sure_is_all_but_known_to_the_bigram():
    train = ["abcde"] * 500
    unigram, bigram = unigram_and_bigram(train, ["abcde"], Vocabulary.of(train))
    assert bigram < 0.01 and unigram == pytest.approx(math.log(6), abs=0.01)


def test_pairs_tell_nothing_where_characters_are_independent():
    chance = random.Random(0)
    texts = ["".join(chance.choices("abcd", k=50)) for _ in range(400)]
    unigram, bigram = unigram_and_bigram(texts[:300], texts[300:], Vocabulary.of(texts))
    assert bigram == pytest.approx(
        unigram, abs=0.1
    )  # the ends of documents are still foreseen a bit
    assert unigram == pytest.approx(math.log(4), abs=0.1)
