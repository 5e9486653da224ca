"""Whom does a character look for? The keys that it prefers, over the whole corpus.

For each key that stands MIN_DISTANCE or more before the query in at least MIN_COUNT places, two
lifts as in `evidence`, with baselines for many keys at once. A stratum is (length of the query's line,
place in it, distance); with the line of the poem too there would be too few cells in it. A key that is
alone there is its own baseline.

    lift 1 = sum of w over the key's occurrences / sum of mean weights, at the same stratum, of the
             query's other keys
    lift 2 = sum of w over the key's occurrences / sum of mean weights of any query and key at the
             same stratum, times the key's popularity: how much more than those means it receives
             from other queries

Punctuation, the start of the text and the query character itself don't count. The double lift is the
smaller of the two, what survives both questions. Small counts are drawn towards 1 as if SHRINKAGE
more occurrences of lift 1 had been seen: n · lift + SHRINKAGE over n + SHRINKAGE; the intervals
(poems drawn, baselines kept) likewise. Training poems are among those counted: this describes what
the model does with its corpus, and is no test.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from maps.bootstrap import Interval, plain, ratio_interval, shown
from maps.corpus_maps import attention_over
from maps.evidence import MIN_DISTANCE
from maps.terminal import table
from maps.verse import read_verse

MIN_COUNT = 20
SHRINKAGE = 10
OTHER_POEMS = 1000  # poems without the query, for how popular a key is with others
LOOKED_FOR = 5  # keys whose mean double lift says how choosy a head is
BEST_HEADS, TOP = 2, 15  # heads that are shown, and keys of each


@dataclass(frozen=True)
class Partner:
    """A key that a query looks for in one head (layer and head from 0)."""

    key: str
    n: int
    layer: int
    head: int
    weight: float
    lift1: float
    lift2: float
    lift: Interval  # the smaller lift, shrunk


def find_partners(
    poems: Sequence[str],
    maps: Iterable[tuple[Sequence[int], np.ndarray]],
    query: str,
    min_count: int = MIN_COUNT,
) -> list[Partner]:
    """The keys with the highest double lift, best first, TOP for each head.

    The heads are the BEST_HEADS ones whose LOOKED_FOR best keys have the highest mean double lift.
    `maps` as from `attention_over`; poems without the query serve the popularity of keys.
    """
    verses = [read_verse("\n" + poem) for poem in poems]
    parts, values, shape = [], [], (0, 0)
    for indices, weights in maps:
        shape = weights.shape[:2]
        for place, poem in enumerate(indices):
            verse = verses[poem]
            size = len(verse.codes)
            others = verse.character & (verse.codes != ord(query))
            rows = verse.character if query not in poems[poem] else verse.codes == ord(query)
            far = np.arange(size)[:, None] - np.arange(size) >= MIN_DISTANCE
            i, j = np.nonzero(rows[:, None] & others & far)
            parts.append(np.stack([np.full_like(i, poem), verse.codes[j], verse.stratum(i, j)]))
            values.append(weights[:, :, place, i, j].reshape(shape[0] * shape[1], len(i)))
    poem, code, stratum = np.concatenate(parts, axis=1)
    value = np.concatenate(values, axis=1)  # (heads, N)
    mine = np.isin(poem, [at for at, text in enumerate(poems) if query in text])
    codes, key = np.unique(code, return_inverse=True)
    _, stratum = np.unique(stratum, return_inverse=True)
    counts = np.bincount(key[mine], minlength=len(codes))
    candidates = np.flatnonzero(counts >= min_count)
    if not len(candidates):
        return []

    found: dict[tuple[int, int], tuple] = {}
    n_strata = stratum.max() + 1
    _, pair = np.unique(key * n_strata + stratum, return_inverse=True)  # a key at a stratum
    n_pairs = pair.max() + 1
    for layer, head in np.ndindex(*shape):
        w = value[layer * shape[1] + head]
        own = np.bincount(stratum[mine], w[mine], n_strata)
        own_n = np.bincount(stratum[mine], minlength=n_strata)
        of_key = np.bincount(pair[mine], w[mine], n_pairs)
        of_key_n = np.bincount(pair[mine], minlength=n_pairs)
        rest, rest_n = own[stratum] - of_key[pair], own_n[stratum] - of_key_n[pair]
        # Where no other key stands at the stratum, the key is its own baseline.
        first = np.where(rest_n > 0, rest, own[stratum]) / np.maximum(
            np.where(rest_n > 0, rest_n, own_n[stratum]), 1
        )
        usual_n = np.bincount(stratum[~mine], minlength=n_strata)
        usual = np.bincount(stratum[~mine], w[~mine], n_strata) / np.maximum(usual_n, 1)
        received = np.bincount(key[~mine], w[~mine], len(codes))
        due = np.bincount(key[~mine], usual[stratum[~mine]], len(codes))
        popularity = np.divide(received, due, out=np.ones(len(codes)), where=due > 0)
        second = np.where(usual_n[stratum] > 0, usual[stratum] * popularity[key], first)
        total = np.bincount(key[mine], w[mine], len(codes))
        lifts = np.stack(
            [
                total[candidates] / np.bincount(key[mine], base[mine], len(codes))[candidates]
                for base in (first, second)
            ]
        )
        smaller = _shrink(lifts.min(0), counts[candidates])
        found[layer, head] = (smaller, lifts, total, first, second)
    choosy = {at: np.sort(result[0])[-LOOKED_FOR:].mean() for at, result in found.items()}
    partners = []
    for layer, head in sorted(choosy, key=lambda at: -choosy[at])[:BEST_HEADS]:
        smaller, lifts, total, first, second = found[layer, head]
        w = value[layer * shape[1] + head]
        for at in np.argsort(-smaller, kind="stable")[:TOP]:
            number = candidates[at]
            cells = mine & (key == number)
            base = (first if lifts[0, at] <= lifts[1, at] else second)[cells]
            interval = ratio_interval(poem[cells].tolist(), w[cells].astype(float), base)
            n = int(counts[number])
            partners.append(
                Partner(
                    chr(codes[number]),
                    n,
                    layer,
                    head,
                    float(total[number] / n),
                    *(float(lift) for lift in lifts[:, at]),
                    Interval(*(float(_shrink(limit, n)) for limit in interval)),
                )
            )
    return partners


def _shrink(lift, n):
    """The lift as if SHRINKAGE more occurrences of lift 1 had been seen."""
    return (n * lift + SHRINKAGE) / (n + SHRINKAGE)


def looks_for(model, vocabulary, documents: Sequence[str], query: str) -> list[Partner]:
    """Whom `query` looks for over all documents, see `find_partners`; popularity from OTHER_POEMS
    poems without it, drawn at random, always the same."""
    texts = [text[: model.config.block_size - 1] for text in documents]
    with_query = [text for text in texts if query in text]
    others = [text for text in texts if query not in text]
    drawn = np.random.default_rng(0).permutation(len(others))[:OTHER_POEMS]
    poems = [*with_query, *(others[at] for at in sorted(drawn))]
    if not with_query:
        return []
    return find_partners(poems, attention_over(model, vocabulary, poems), query)


def partner_dicts(partners: Sequence[Partner]) -> list[dict]:
    """For JSON and the page; layers and heads from 1, lift = [value, low, high]."""
    return [
        {
            "key": partner.key,
            "n": partner.n,
            "layer": partner.layer + 1,
            "head": partner.head + 1,
            "weight": round(partner.weight, 4),
            "lift1": round(partner.lift1, 3),
            "lift2": round(partner.lift2, 3),
            "lift": plain(partner.lift),
        }
        for partner in partners
    ]


def format_partners(query: str, partners: Sequence[dict]) -> str:
    """A table for the terminal, from `partner_dicts`."""
    if not partners:
        return f"{query}: no key stands before it in {MIN_COUNT} places or more / 例子太少"
    rows = [
        [
            f"{query}→{p['key']}",
            f"L{p['layer']} H{p['head']}",
            str(p["n"]),
            f"{p['weight']:.3f}",
            f"{p['lift1']:.2f}",
            f"{p['lift2']:.2f}",
            shown(p["lift"]),
        ]
        for p in partners
    ]
    head = [
        "字对 pair",
        "头 head",
        "例 n",
        "权重 weight",
        "lift 1",
        "lift 2",
        "双重倍数 double lift",
    ]
    notes = (
        "数的是全部的诗，训练诗也在内；头和字都是挑出来的：只作描述，不算证据。"
        f"双重倍数：两个 lift 中较小的一个；假想另有 {SHRINKAGE} 例、倍数都是 1，由此拉向 1。\n"
        "counted over all poems, those of the training too; heads and characters are picked: this "
        "describes and is no evidence\n"
        f"double lift: the smaller lift, drawn towards 1 by {SHRINKAGE} imagined occurrences"
    )
    return f"{table(head, rows, left=2)}\n{notes}"
