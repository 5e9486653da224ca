"""Does 光 really attend to 月? How much more than chance, judged on poems the model never saw.

The question. An occurrence is a poem with the query character at position i and the key character
at an earlier position j, i - j >= 2, so that no neighbour effect counts. Row i of a map is what the
model looks at while it reads the query. All occurrences of a poem count. The mean weight of these
cells is compared with two baselines:

    lift 1   the same query character, other keys:    does 光 prefer 月 to other characters?
    lift 2   other query characters, the same key:    is it 光 that prefers 月, or does everyone?

Only characters serve as others: not punctuation, not the start of the text, neither of the pair
itself (月 to 月 is a matter of repetition). Both baselines come from all poems given, not only from
those with the pair (lift 1 asks of 光 in general, not of the 光 of one poem), and are matched by
position: each occurrence is compared with other cells of the same stratum, (the query's line in the
poem, length of that line, place of the query in it, distance). In regular verse that fixes where
query and key stand, so a head that knows only positions has a lift of 1. An occurrence with fewer
than MIN_MATCHES such cells is matched without regard to which line of the poem it is, and where
these are too few as well, by distance alone; one without any is left out. What is matched less
closely can have a lift by position: the untrained model, whose heads share out evenly, shows how much.

In formulas: with n_s occurrences and m_s other cells in stratum s, and b_s the mean weight of those,

    lift = sum of w over the occurrences / sum of b_s over the occurrences
         = sum_p A_p / sum_p B_p                                   over the poems p, where
    A_p  = sum of w over the poem's occurrences
    B_p  = sum of b_s over its occurrences + sum over its other cells of n_s / m_s · (w - b_s)

(direct standardisation; the last sum is zero over all poems and carries what a poem does to b_s, to
first order). The interval draws poems with replacement, 2,000 times, seeded, so that occurrences and
baseline vary together: a bootstrap-t of the ratio's logarithm (`bootstrap.ratio_interval`).

The head is chosen on training poems (the head whose smaller lift is the greatest) and judged on
held-out ones. One head chosen and judged has an honest interval; the table of all heads shows
many intervals, of which one in twenty misses by chance.

What a lift is compared with. Any pair has some head that prefers it: were W_q random at the start,
every pair of characters would already have a steady preference of its own there, and the best of the
untrained heads, chosen and judged in the same way, lifts of 4 to 9, which training keeps. W_q starts
at zero, so untrained heads look at all characters alike. A high lift of the best head still proves no
more than a steady preference; what the pair has to do with it is for the controls to say (the same
head untrained, other pairs in the same head and in the heads that suit them best), and for the mean
over all heads, which chooses nothing.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from maps.bootstrap import Interval, ratio_interval
from maps.corpus_maps import attention_over
from maps.verse import Verse, read_verse

MIN_DISTANCE = 2
MIN_MATCHES = 5  # other cells in a stratum, below which an occurrence is matched less closely
MIN_POEMS = 10  # with fewer poems no lift is given: its interval would mean nothing
OTHERS = 400  # poems without the pair that serve as baseline, for each of the two lifts

OCCURRENCE, OTHER_KEYS, OTHER_QUERIES = range(3)  # kinds of cells

# 平水韵 下平八庚: the rhyme of 声, from the rhyme books (characters of one reading alone).
GENG_RHYME = (
    "庚羹盲觥彭亨英烹平枰京惊荆明盟鸣荣莹兵兄卿生甥笙牲擎鲸迎衡耕萌氓宏茎莺樱泓橙争筝清情晴精睛菁"
    "旌楹瀛嬴赢营婴缨贞成城诚呈程征名倾萦琼轻"
)


@dataclass(frozen=True)
class Pair:
    """A question: how much does `query` look at `key`? Several characters mean any of them."""

    query: str
    key: str
    role: str = "asked"  # asked, related, control, reverse or untrained
    label: str = ""  # what to call the key where it is several characters

    @property
    def key_name(self) -> str:
        return self.label or self.key


ASKED = Pair("光", "月")
RELATED = (
    Pair("明", "月", "related"),
    Pair("影", "月", "related"),
    Pair("香", "花", "related"),
    Pair("声", GENG_RHYME, "related", "庚韵"),
)
CONTROLS = (Pair("光", "山", "control"), Pair("光", "人", "control"), Pair("月", "光", "reverse"))


@dataclass(frozen=True)
class Cells:
    """Cells of the maps that a question needs, sorted by poem; every array has shape (N,)."""

    poem: np.ndarray
    query: np.ndarray  # position i, the row
    key: np.ndarray  # position j, the column
    kind: np.ndarray  # OCCURRENCE, OTHER_KEYS or OTHER_QUERIES
    strata: np.ndarray  # (N, S) numbers of what must be equal for a comparison, the closest first

    @property
    def distance(self) -> np.ndarray:
        return self.query - self.key

    def only(self, members: np.ndarray) -> "Cells":
        """Those that a mask (N,) marks."""
        return Cells(*(getattr(self, field.name)[members] for field in fields(self)))


@dataclass(frozen=True)
class PairSums:
    """What a question needs of each of P poems, for L layers and H heads: sums over a poem."""

    pair: Pair
    poems: list[str]  # the texts, which tell the clusters of the bootstrap apart
    count: np.ndarray  # (P,) occurrences
    weight: np.ndarray  # (P, L, H) weight query -> key: A in the module's text
    expected: np.ndarray  # (P, 2, L, H) what it would be without preference: B, for both lifts
    top: np.ndarray  # (P, L, H) occurrences whose key is the most looked-at character of the row
    uniform: np.ndarray  # (P,) 1 / (i + 1) at the occurrences
    by_distance: np.ndarray  # (P, 2) occurrences matched by distance alone, for both lifts
    left_out: int = 0  # occurrences that nothing can be compared with, not among the others

    @property
    def n(self) -> int:
        """Number of occurrences."""
        return int(self.count.sum())

    @property
    def n_poems(self) -> int:
        """Number of different poems with an occurrence."""
        return len({poem for poem, count in zip(self.poems, self.count, strict=True) if count})

    def of_head(self, layer: int, head: int) -> "PairSums":
        """The sums of one head alone, counted from 0."""
        one = np.s_[..., layer : layer + 1, head : head + 1]
        return replace(
            self, weight=self.weight[one], expected=self.expected[one], top=self.top[one]
        )

    def mean_of_heads(self) -> "PairSums":
        """The sums of the mean over all heads' weights: no head is chosen, so no choice can flatter
        it. (`top` has no meaning here and stays the mean over heads.)"""
        mean = {
            name: getattr(self, name).mean((-2, -1), keepdims=True)
            for name in ("weight", "expected", "top")
        }
        return replace(self, **mean)


@dataclass(frozen=True)
class HeadLift:
    """The figures of one head; layer and head count from 0. Lifts are None where n is too small."""

    layer: int
    head: int
    weight: float  # mean weight query -> key; nan without occurrences
    uniform: float  # mean of 1 / (i + 1), what a head without any preference gives
    lift1: Interval | None
    lift2: Interval | None
    top_share: float  # how often the key is the most looked-at of all characters up to the query


def contains_pair(text: str, pair: Pair) -> bool:
    """True where a query stands MIN_DISTANCE or more behind a key."""
    first = min((at for at in map(text.find, pair.key) if at >= 0), default=len(text))
    return max(map(text.rfind, pair.query)) - first >= MIN_DISTANCE


def choose_poems(
    documents: Sequence[str], pairs: Iterable[Pair], others: int = OTHERS
) -> list[str]:
    """The poems that the questions need: all with a pair, and for each lift's baseline at most
    `others` more with the query or with the key, drawn at random, always the same."""
    random = np.random.default_rng(0)
    chosen: set[int] = set()
    for pair in pairs:
        with_pair = {at for at, text in enumerate(documents) if contains_pair(text, pair)}
        chosen |= with_pair
        for characters in (pair.query, pair.key):
            rest = [
                at
                for at, text in enumerate(documents)
                if at not in with_pair and any(c in text for c in characters)
            ]
            if len(rest) > others:
                rest = [rest[at] for at in random.choice(len(rest), others, replace=False)]
            chosen.update(rest)
    return [documents[at] for at in sorted(chosen)]


def count_pairs(documents: Iterable[str], query: str) -> Counter[str]:
    """For each character or mark in how many of the texts it stands MIN_DISTANCE or more before
    `query`."""
    counts: Counter[str] = Counter()
    for text in documents:
        counts.update(set(text[: max(0, text.rfind(query) - MIN_DISTANCE + 1)]))
    return counts


def find_cells(verses: Sequence[Verse], pair: Pair, others: bool = True) -> Cells:
    """The occurrences of the pair in the poems, and the cells they are compared with; without
    `others` the occurrences alone."""
    queries, keys = np.zeros((2, sys.maxunicode + 1), dtype=bool)
    queries[[ord(c) for c in pair.query]] = True
    keys[[ord(c) for c in pair.key]] = True
    found = [np.zeros((6, 0), dtype=int)]
    for number, verse in enumerate(verses):
        is_query, is_key = queries[verse.codes], keys[verse.codes]
        if not (is_query.any() or is_key.any()):
            continue
        other = verse.character & ~is_query & ~is_key
        kinds = ((is_query, is_key), (is_query, other), (other, is_key))
        for kind, (rows, columns) in enumerate(kinds if others else kinds[:1]):
            i, j = np.nonzero(rows[:, None] & columns)
            far = i - j >= MIN_DISTANCE
            i, j = i[far], j[far]
            close = verse.stratum(i, j)
            same = np.ones_like(i)
            closest = verse.line[i] << 48 | close
            found.append(np.stack([number * same, i, j, kind * same, closest, close]))
    poem, i, j, kind, *strata = np.concatenate(found, axis=1)
    return Cells(poem, i, j, kind, np.stack(strata, axis=1))


def incomparable(cells: Cells) -> np.ndarray:
    """(N,) bool: occurrences that nothing can be compared with, for one lift or the other."""
    alone = np.zeros(len(cells.kind), dtype=bool)
    for kind in (OTHER_KEYS, OTHER_QUERIES):
        alone |= ~np.isin(cells.distance, cells.distance[cells.kind == kind])
    return alone & (cells.kind == OCCURRENCE)


def matches(cells: Cells, kind: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """How the occurrences are matched with others of a kind, the closest way first: the number of
    each cell's stratum (N,), and which occurrences are compared by it (N,) bool. The last way is the
    distance alone."""
    left, other = cells.kind == OCCURRENCE, cells.kind == kind
    for stratum in cells.strata.T:
        _, stratum = np.unique(stratum, return_inverse=True)
        enough = left & (
            np.bincount(stratum[other], minlength=stratum.size)[stratum] >= MIN_MATCHES
        )
        yield stratum, enough
        left = left & ~enough
    yield cells.distance, left


def expected_weights(cells: Cells, values: np.ndarray, kind: int) -> np.ndarray:
    """B of the module's text, spread over the cells: values (N, L, H) -> (N, L, H).

    `kind` is OTHER_KEYS for the first lift, OTHER_QUERIES for the second.
    """
    other = cells.kind == kind
    result = np.zeros_like(values)
    for stratum, matched in matches(cells, kind):
        size = 1 + stratum.max(initial=0)
        n, m = (np.bincount(stratum[members], minlength=size) for members in (matched, other))
        used = other & (n[stratum] > 0)
        total = np.zeros((len(n), *values.shape[1:]))
        np.add.at(total, stratum[used], values[used])
        mean = total / np.maximum(m, 1)[:, None, None]
        result[matched] += mean[stratum[matched]]
        ratio = (n / np.maximum(m, 1))[stratum[used]][:, None, None]
        result[used] += ratio * (values[used] - mean[stratum[used]])
    return result


def pair_sums(
    poems: Sequence[str],
    maps: Iterable[tuple[Sequence[int], np.ndarray]],
    pairs: Sequence[Pair],
) -> list[PairSums]:
    """Gather what the questions need from the poems' maps, in one pass over them.

    `maps` yields (indices of poems, weights (L, H, B, T, T)) as `attention_over` does, where T is
    the poem's length plus one for its start.
    """
    verses = [read_verse("\n" + poem) for poem in poems]
    found = [find_cells(verses, pair) for pair in pairs]
    alone = [incomparable(cells) for cells in found]
    questions = [cells.only(~left_out) for cells, left_out in zip(found, alone, strict=True)]
    bounds = [np.searchsorted(cells.poem, np.arange(len(poems) + 1)) for cells in questions]
    values: list[np.ndarray] = []  # of each question's cells, (N, L, H)
    tops: list[np.ndarray] = []  # the key is the row's most looked-at character
    for indices, weights in maps:
        if not values:
            shape = weights.shape[:2]
            values = [np.zeros((len(cells.poem), *shape)) for cells in questions]
            tops = [np.zeros((len(cells.poem), *shape)) for cells in questions]
        for row, poem in enumerate(indices):
            for at, cells in enumerate(questions):
                here = np.arange(bounds[at][poem], bounds[at][poem + 1])
                if not here.size:
                    continue
                i, j = cells.query[here], cells.key[here]
                values[at][here] = np.moveaxis(weights[:, :, row, i, j], -1, 0)
                pair = cells.kind[here] == OCCURRENCE
                if pair.any():
                    rows = weights[:, :, row, i[pair]] * verses[poem].character  # (L, H, n, T)
                    # Above all others: where several have as much, none of them is the top.
                    best = (rows >= rows.max(-1, keepdims=True)) & (rows > 0)
                    top = best[:, :, np.arange(pair.sum()), j[pair]] & (best.sum(-1) == 1)
                    tops[at][here[pair]] = np.moveaxis(top, -1, 0)
    return [
        replace(sum_by_poem(pair, poems, cells, *arrays), left_out=int(left_out.sum()))
        for pair, cells, left_out, *arrays in zip(
            pairs, questions, alone, values, tops, strict=True
        )
    ]


def sum_by_poem(
    pair: Pair, poems: Sequence[str], cells: Cells, values: np.ndarray, top: np.ndarray
) -> PairSums:
    """Add the cells up, keeping the poems that have any."""
    is_pair = cells.kind == OCCURRENCE
    kept, number = np.unique(cells.poem, return_inverse=True)

    def total(array: np.ndarray) -> np.ndarray:
        sums = np.zeros((len(kept), *array.shape[1:]))
        np.add.at(sums, number, array)
        return sums

    occurrence = is_pair[:, None, None]
    expected = [expected_weights(cells, values, kind) for kind in (OTHER_KEYS, OTHER_QUERIES)]
    by_distance = [[*matches(cells, kind)][-1][1] for kind in (OTHER_KEYS, OTHER_QUERIES)]
    return PairSums(
        pair,
        [poems[at] for at in kept],
        total(is_pair.astype(float)),
        total(values * occurrence),
        total(np.stack(expected, axis=1)),
        total(top * occurrence),
        total(is_pair / (cells.query + 1)),
        total(np.stack(by_distance, axis=1)),
    )


def pool(parts: Sequence[PairSums]) -> PairSums:
    """Several trainings' sums as one: each is of the same pair and has as many layers and heads,
    usually one, the head that its own training poems chose. Poems judged twice are one cluster."""
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("count", "weight", "expected", "top", "uniform", "by_distance")
    }
    poems = [poem for part in parts for poem in part.poems]
    return PairSums(parts[0].pair, poems, left_out=sum(part.left_out for part in parts), **arrays)


def head_lifts(sums: PairSums) -> list[HeadLift]:
    """The figures of every head, in the order of layers and heads."""
    n = sums.n or np.nan
    weight, share = sums.weight.sum(0) / n, sums.top.sum(0) / n
    enough = sums.n_poems >= MIN_POEMS
    if enough:
        over = np.broadcast_to(sums.weight[:, None], sums.expected.shape)
        lifts = ratio_interval(sums.poems, over, sums.expected)  # (3, 2 lifts, L, H)
    return [
        HeadLift(
            layer,
            head,
            float(weight[layer, head]),
            float(sums.uniform.sum() / n),
            Interval(*lifts[:, 0, layer, head].tolist()) if enough else None,
            Interval(*lifts[:, 1, layer, head].tolist()) if enough else None,
            float(share[layer, head]),
        )
        for layer, head in np.ndindex(weight.shape)
    ]


def choose_head(sums: PairSums) -> tuple[int, int]:
    """(layer, head) from 0 of the head whose smaller lift is the greatest; for training poems."""
    expected = sums.expected.sum(0).max(0)  # the larger expectation gives the smaller lift
    score = sums.weight.sum(0) / np.where(expected > 0, expected, np.inf)
    layer, head = np.unravel_index(score.argmax(), score.shape)
    return int(layer), int(head)


@dataclass(frozen=True)
class PairEvidence:
    """A pair's figures: the head chosen on training poems, all heads judged on held-out poems."""

    pair: Pair
    layer: int
    head: int
    train: list[HeadLift]
    held_out: list[HeadLift]
    sums: PairSums  # of the held-out poems, all heads


def measure(model, vocabulary, poems: Sequence[str], pairs: Sequence[Pair]) -> list[PairSums]:
    """What the questions need of those poems that have a query or a key. No text is longer than the
    model's block."""
    asked = {character for pair in pairs for character in pair.query + pair.key}
    # One map at least, to know the heads.
    poems = [text for text in poems if not asked.isdisjoint(text)] or [*poems[:1]]
    return pair_sums(poems, attention_over(model, vocabulary, poems), pairs)


def pair_evidence(
    model, vocabulary, train: Sequence[str], held_out: Sequence[str], pairs: Sequence[Pair]
) -> list[PairEvidence]:
    """Ask each pair: choose its head on the training poems, judge all heads on the held-out ones.
    No text is longer than the model's block."""
    sides = [measure(model, vocabulary, poems, pairs) for poems in (train, held_out)]
    results = []
    for chosen_on, judged_on in zip(*sides, strict=True):
        layer, head = choose_head(chosen_on)
        results.append(
            PairEvidence(
                judged_on.pair, layer, head, head_lifts(chosen_on), head_lifts(judged_on), judged_on
            )
        )
    return results
