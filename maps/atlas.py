"""The head atlas: what each head does, in kinds that a student can name.

Each kind has target cells. A head's score for it is how many times the weight of the targets
exceeds what the same head gives other cells that could have served as well:

    previous     the character before             against the row's other characters
    start        the start of the text            against the mean of the row's other cells
    line_start   the first character of the line  against the line's other characters
    punctuation  earlier punctuation              against earlier characters
    couplet      the same place of the couplet's  against the other places of that line
                 first line, from its second
    rhyme        line ends to earlier line ends,  against the odd lines' ends, and against what odd
                 both of even lines, which rhyme  lines' ends give each other at the same distance
    same         the same character, earlier      against what the head gives at these positions
    meaning      characters that often stand in   against what the head gives at these positions,
                 the same poems (天 地, 东 西)     from that query and to that key

Rows are those of characters, not of punctuation. "Other cells" of the first five kinds stand in the
same row: a row with t targets and r others is expected to give the targets t times the mean of the
others. Except for `previous` and `start`, the character next to the query is neither target nor other, and a
kind's others leave out punctuation and the start unless said. The first line is left out of `rhyme`,
since it may rhyme or not; odd lines from the third on don't rhyme in regular verse.

What a head gives at a position is its mean weight over all poems in the same stratum (length of the
line, place in it, distance), among characters that are neither the same nor associated, scaled to
what the row at hand gives such characters (for `meaning` also to what the column receives; the
smaller score counts). A head that looks at the same place of the line before has no `meaning`
because couplets pair 天 with 地.

Intervals draw poems (`bootstrap.ratio_interval`); with fewer than MIN_POEMS that have its targets a kind
has no score. A kind is clear of chance where the lower limit
is above CLEAR and the kind takes LEAST_SHARE of the weight or more beyond chance, in the rows that
have its targets. Among the clear kinds the one that takes most gives the name; punctuation and the
start of the text only where nothing else is clear: many heads of other kinds give them much weight. No
clear kind: "mixed".
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from maps.bootstrap import Interval, ratio_interval
from maps.corpus_maps import attention_over
from maps.evidence import MIN_DISTANCE, MIN_POEMS, Cells, expected_weights
from maps.terminal import table
from maps.verse import Verse, is_character, read_verse

KINDS = {  # name in Chinese and English
    "previous": ("前一字", "previous character"),
    "same": ("同字", "same character"),
    "start": ("篇首", "start of text"),
    "line_start": ("句首", "start of line"),
    "punctuation": ("标点", "punctuation"),
    "couplet": ("上句同位", "couplet"),
    "rhyme": ("押韵", "rhyme"),
    "meaning": ("常同现", "often together"),
}
MIXED = ("混合", "mixed")
CLEAR = 2.0  # times chance that the lower limit of a score must exceed for a name
LEAST_SHARE = 0.05  # of a row's weight that a kind must take beyond chance for a name
RESTING = ("start", "punctuation")  # where weight often rests
ATLAS_POEMS = 600  # held-out poems that an atlas looks at
ASSOCIATED = 300  # pairs of characters that `meaning` asks about
FREQUENT = 400  # most frequent characters, among which they are sought
LEAST_POEMS = 20  # in which both must stand
LINE_END = re.compile("\\w(?=[，。？！；：,.?!;:])")

Maps = Callable[[], Iterable[tuple[Sequence[int], np.ndarray]]]


@dataclass(frozen=True)
class HeadScores:
    """One head's scores; layer and head count from 0."""

    layer: int
    head: int
    scores: dict[str, Interval | None]  # kind -> times chance, None with few poems
    shares: dict[str, float]  # kind -> share of the weight beyond chance, mean over its rows
    kind: str


def associated_pairs(documents: Sequence[str], pairs: int = ASSOCIATED) -> set[tuple[str, str]]:
    """Pairs of different characters that stand in the same poems more often than chance, both
    orders of each: the most so among the frequent characters, with LEAST_POEMS or more.

    With n_a of N poems having a, and n_ab both but nowhere side by side (桃花 is a word), the
    measure is n_ab · N / (n_a · n_b). Line ends are left out: rhyme words meet for their sound.
    """
    inner = [LINE_END.sub("", document) for document in documents]
    counts = Counter(c for text in inner for c in set(text) if is_character(c))
    characters = sorted(counts, key=lambda c: (-counts[c], c))[:FREQUENT]
    number = {c: at for at, c in enumerate(characters)}
    present = np.zeros((len(inner), len(characters)), dtype=np.float32)
    for row, text in enumerate(inner):
        present[row, [number[c] for c in set(text) if c in number]] = 1
    both, each = present.T @ present, present.sum(0)
    words = Counter(two for text in inner for two in {text[at : at + 2] for at in range(len(text))})
    for two, count in words.items():
        if len(two) == 2 and two[0] in number and two[1] in number:
            at = [number[c] for c in two]
            both[at, at[::-1]] -= count
    ratio = both * len(inner) / np.outer(each, each)
    ratio[(both < LEAST_POEMS) | np.tri(len(characters), dtype=bool)] = 0
    best = np.argsort(-ratio, axis=None, kind="stable")[:pairs]
    found = [divmod(int(at), len(characters)) for at in best if ratio.flat[at] > 1]
    names = [(characters[a], characters[b]) for a, b in found]
    return {*names, *((b, a) for a, b in names)}


def row_kinds(verse: Verse) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Target and other cells, (T, T) bool each, of the kinds that are judged within a row."""
    size = len(verse.codes)
    i, j = np.indices((size, size))
    row = verse.character[:, None] & (i > 0)
    character, line, place = verse.character, verse.line, verse.place
    earlier = row & (j < i)
    far = earlier & (i - j >= MIN_DISTANCE) & character
    same_line = far & (line[:, None] == line)
    first_line = far & (line[:, None] == line + 1) & (line % 2 == 0)
    first_line &= verse.length[:, None] == verse.length
    return {
        "previous": (earlier & (i - j == 1) & character, far),
        "start": (row & (j == 0), row & (j > 0) & (j <= i)),
        "line_start": (same_line & (place == 0), same_line & (place > 0)),
        "punctuation": (earlier & (i - j >= MIN_DISTANCE) & ~character & (j > 0), far),
        "couplet": (
            first_line & (place[:, None] == place),
            first_line & (place[:, None] != place),
        ),
    }


def rhyme_cells(verses: Sequence[Verse]) -> Cells:
    """Line ends that see earlier line ends, from the third line on: even to even lines (kind 0),
    even to odd (kind 1), odd to odd (kind 2); stratum: length of the line and lines between."""
    found = [np.zeros((5, 0), dtype=int)]
    for number, verse in enumerate(verses):
        ends = np.flatnonzero(verse.line_end & (verse.line >= 1))
        i, j = (cells.ravel() for cells in np.meshgrid(ends, ends, indexing="ij"))
        keep = (i > j) & (verse.length[i] == verse.length[j])
        i, j = i[keep], j[keep]
        even = verse.line[[i, j]] % 2 == 1  # lines count from 0
        regular = (verse.line[j] >= 2) | even[1]
        kind = np.select(
            [even[0] & even[1], even[0] & ~even[1], ~even[0] & ~even[1]], [0, 1, 2], -1
        )
        keep = regular & (kind >= 0)
        i, j, kind = i[keep], j[keep], kind[keep]
        between = np.where(kind == 1, 0, verse.line[i] - verse.line[j])
        found.append(
            np.stack([np.full_like(i, number), i, j, kind, verse.length[i] << 20 | between])
        )
    poem, i, j, kind, stratum = np.concatenate(found, axis=1)
    matched = (kind != 0) | np.isin(stratum, stratum[kind == 2])  # the eighth sees the second: none
    return Cells(poem, i, j, kind, stratum[:, None]).only(matched)


def far_cells(verse: Verse, number: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Flat cell numbers i · T + j of characters at a distance, and their strata (length of the line,
    place, distance), which `number` numbers as they turn up."""
    size = len(verse.codes)
    i, j = np.indices((size, size))
    far = verse.character[:, None] & verse.character & (i - j >= MIN_DISTANCE)
    i, j = np.nonzero(far)
    strata = [number.setdefault(code, len(number)) for code in verse.stratum(i, j).tolist()]
    return i * size + j, np.array(strata, dtype=int)


def score_heads(
    poems: Sequence[str], maps: Maps, associated: set[tuple[str, str]]
) -> list[HeadScores]:
    """Score every head over the poems, in the order of layers and heads.

    maps() yields (indices of poems, weights (L, H, B, T, T)) as `attention_over` does; it is called
    twice.
    """
    verses = [read_verse("\n" + poem) for poem in poems]
    pair_codes = np.array([ord(a) << 32 | ord(b) for a, b in associated] or [-1])
    strata: dict[int, int] = {}
    by_shape: dict[bytes, tuple] = {}

    def shape_of(verse: Verse) -> tuple:
        """What depends on the poem's form alone: row kinds, and cells with their strata."""
        key = verse.character.tobytes() + verse.line.tobytes()  # a mark may stand within a line
        if key not in by_shape:
            kinds = row_kinds(verse)
            masks, counts = [], []
            for target, other in kinds.values():
                usable = target.any(1) & other.any(1)
                ratio = target.sum(1) / np.maximum(other.sum(1), 1)
                masks += [target * usable[:, None], other * (usable * ratio)[:, None]]
                counts.append(usable.sum())
            masks = np.stack(masks).reshape(len(masks), -1).T.astype(np.float32)  # (T·T, 2 kinds)
            by_shape[key] = (masks, np.array(counts), *far_cells(verse, strata))
        return by_shape[key]

    def content_of(verse: Verse, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the cells hold the same character, which an associated pair."""
        query, key = verse.codes[cells // len(verse.codes)], verse.codes[cells % len(verse.codes)]
        return query == key, np.isin(query.astype(np.int64) << 32 | key, pair_codes)

    # First pass: the kinds within a row, the rhymes, and the mean weight of each stratum.
    names = [*row_kinds(verses[0])]
    weight, expected = {}, {}
    rhyme = rhyme_cells(verses)
    bounds = np.searchsorted(rhyme.poem, np.arange(len(poems) + 1))
    total = None
    rows = {name: np.zeros(len(poems)) for name in KINDS}
    for indices, weights in maps():
        n_layer, n_head, _, size, _ = weights.shape
        heads = n_layer * n_head
        if total is None:
            total, count = np.zeros((0, heads)), np.zeros(0)
            weight = {name: np.zeros((len(poems), heads)) for name in KINDS}
            expected = {name: np.zeros((len(poems), heads)) for name in KINDS}
            expected["meaning to key"] = np.zeros((len(poems), heads))
            rhyme_values = np.zeros((len(rhyme.poem), heads))
        for place, poem in enumerate(indices):
            flat = weights[:, :, place].reshape(heads, size * size)
            masks, counts, cells, numbers = shape_of(verses[poem])
            sums = flat @ masks
            for at, name in enumerate(names):
                weight[name][poem], expected[name][poem] = sums[:, 2 * at], sums[:, 2 * at + 1]
                rows[name][poem] = counts[at]
            here = np.arange(bounds[poem], bounds[poem + 1])
            rhyme_values[here] = flat[:, rhyme.query[here] * size + rhyme.key[here]].T
            ordinary = ~np.logical_or(*content_of(verses[poem], cells))
            grown = len(strata) - len(count)
            total = np.concatenate([total, np.zeros((grown, heads))])
            count = np.concatenate([count, np.zeros(grown)])
            count += np.bincount(numbers[ordinary], minlength=len(count))
            for head in range(heads):
                values = flat[head, cells[ordinary]]
                total[:, head] += np.bincount(numbers[ordinary], values, minlength=len(count))
    mean = total / np.maximum(count, 1)[:, None]  # (strata, heads)

    # Second pass: characters that are the same or associated, against the mean of their stratum.
    for indices, weights in maps():
        for place, poem in enumerate(indices):
            size = weights.shape[-1]
            flat = weights[:, :, place].reshape(heads, size * size)
            _, _, cells, numbers = shape_of(verses[poem])
            # Where a stratum has no ordinary characters, nothing says what chance would give.
            judged = count[numbers] > 0
            same, pair = (members & judged for members in content_of(verses[poem], cells))
            if not (same.any() or pair.any()):
                continue
            ordinary = judged & ~(same | pair)
            query, key = cells // size, cells % size
            seen, usual = flat[:, cells], mean[numbers].T  # (heads, N)
            for name, members, axis in (
                ("same", same, query),
                ("meaning", pair, query),
                ("meaning to key", pair, key),
            ):
                if not members.any():
                    continue
                scale = np.ones((heads, len(axis)))
                for at in np.unique(axis[members]):
                    others = ordinary & (axis == at)
                    ratio = seen[:, others].sum(1) / np.maximum(usual[:, others].sum(1), 1e-12)
                    scale[:, axis == at] = ratio[:, None] if others.any() else 1.0
                expected[name][poem] = (usual * scale)[:, members].sum(1)
                if name in weight:
                    weight[name][poem] = seen[:, members].sum(1)
                    rows[name][poem] = len(np.unique(query[members]))
    _add_rhymes(poems, rhyme, rhyme_values, weight, expected, rows)
    intervals, shares = {}, {}
    for name in KINDS:
        used = rows[name] > 0
        clusters = [poem for poem, keep in zip(poems, used, strict=True) if keep]
        a, b = weight[name][used], expected[name][used]
        if len(set(clusters)) < MIN_POEMS:
            intervals[name], shares[name] = None, np.zeros(heads)
            continue
        intervals[name] = ratio_interval(clusters, a, b)
        for rival in (f"{name} to key", f"{name} to rhyme"):
            if rival in expected:  # of two baselines the one that leaves less
                other = ratio_interval(clusters, a, expected[rival][used])
                smaller = other[0] < intervals[name][0]
                intervals[name] = np.where(smaller, other, intervals[name])
                b = np.where(smaller, expected[rival][used], b)
        shares[name] = (a - b).sum(0) / rows[name].sum()
    results = []
    for head in range(heads):
        scores = {
            name: None if intervals[name] is None else Interval(*intervals[name][:, head].tolist())
            for name in KINDS
        }
        share = {name: float(shares[name][head]) for name in KINDS}
        results.append(
            HeadScores(head // n_head, head % n_head, scores, share, name_head(scores, share))
        )
    return results


def _add_rhymes(poems, rhyme: Cells, values, weight, expected, rows) -> None:
    """Sums over each poem for `rhyme` and its two baselines, from the cells' values (N, heads)."""
    if not all((rhyme.kind == kind).any() for kind in range(3)):
        return
    expected["rhyme to rhyme"] = np.zeros_like(expected["rhyme"])
    targets = rhyme.kind == 0
    for kind, name in ((1, "rhyme"), (2, "rhyme to rhyme")):
        # Even to odd lines have no distance in common with even to even: one stratum a length.
        strata = rhyme.strata >> 20 << 20 if kind == 1 else rhyme.strata
        cells = replace(rhyme, strata=strata)
        baseline = expected_weights(cells, values[..., None], kind)[..., 0]
        np.add.at(expected[name], rhyme.poem, baseline)
    np.add.at(weight["rhyme"], rhyme.poem[targets], values[targets])
    np.add.at(rows["rhyme"], rhyme.poem[targets], 1)


def name_head(scores: dict[str, Interval | None], shares: dict[str, float]) -> str:
    """The kind that names a head, "mixed" where none is clear of chance (see the module's text)."""
    clear = [
        kind
        for kind, score in scores.items()
        if score is not None and score.low > CLEAR and shares[kind] > LEAST_SHARE
    ]
    return max(clear, key=lambda kind: (kind not in RESTING, shares[kind]), default="mixed")


def head_atlas(
    model, vocabulary, train: Sequence[str], held_out: Sequence[str]
) -> list[HeadScores]:
    """Score every head on held-out poems, at most ATLAS_POEMS drawn at random, always the same; the
    associated pairs come from the training poems. Texts are cut to the model's block."""
    drawn = np.random.default_rng(0).permutation(len(held_out))[:ATLAS_POEMS]
    poems = [held_out[at][: model.config.block_size - 1] for at in sorted(drawn)]
    return score_heads(
        poems, lambda: attention_over(model, vocabulary, poems), associated_pairs(train)
    )


def atlas_dict(heads: Sequence[HeadScores]) -> list[list[dict]]:
    """[layer][head] -> {"key", "name_zh", "name_en", "score" (times chance, None for mixed),
    "scores" {kind: times chance}, "intervals" {kind: [value, low, high]}, "shares"}, for JSON and
    the page; what has no number is left out."""
    layers: list[list[dict]] = [[] for _ in range(1 + max(head.layer for head in heads))]
    for head in heads:
        known = {kind: score for kind, score in head.scores.items() if score is not None}
        zh, en = KINDS.get(head.kind, MIXED)
        layers[head.layer].append(
            {
                "key": head.kind,
                "name_zh": zh,
                "name_en": en,
                "score": round(known[head.kind].value, 2) if head.kind in known else None,
                "scores": {kind: round(score.value, 2) for kind, score in known.items()},
                "intervals": {k: [round(x, 3) for x in score] for k, score in known.items()},
                "shares": {kind: round(head.shares[kind], 4) for kind in known},
            }
        )
    return layers


def format_atlas(heads: Sequence[HeadScores]) -> str:
    """The atlas as a table for the terminal: times chance, * where the interval is clear of it."""
    rows = []
    for head in heads:
        zh, en = KINDS.get(head.kind, MIXED)
        cells = []
        for kind in KINDS:
            score = head.scores[kind]
            clear = score is not None and score.low > CLEAR
            cells.append("-" if score is None else f"{score.value:.1f}{'*' if clear else ' '}")
        rows.append([f"L{head.layer + 1} H{head.head + 1}", f"{zh} {en}", *cells])
    names = [f"{zh} {kind}" for kind, (zh, _) in KINDS.items()]
    note = (
        f"数字：这个头给该类位置的权重，是它给可比的别处的几倍；* 表示 95% 置信区间整个高于 {CLEAR:g}。名字：带 * 的各类里"
        f"超出的权重最多的一类，至少占 {LEAST_SHARE:.0%}；篇首和标点，只在没有别的类带 * 时才用。\n"
        "times what the same head gives comparable other places; * its 95% interval lies above "
        f"{CLEAR:g}\nthe name: of the starred kinds the one that takes most weight beyond that, at least "
        f"{LEAST_SHARE:.0%}; punctuation and start where nothing else does"
    )
    return table(["头 head", "名 name", *names], rows, left=2) + "\n" + note
