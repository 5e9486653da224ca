"""The evidence for one pair with its controls, as JSON and as tables for the terminal.

Rows of the table, each on held-out poems:
    asked      the pair, in the head that its training poems chose
    untrained  the same pair in the untrained model, whose heads are all alike; for controls too
    control    other keys, for 光→月 two without a meaning of their own, else two that stand before
               the query in about as many poems, in the asked pair's head and in their own
    reverse    query and key exchanged, likewise
    related    pairs with a meaning, each in its own head
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from maps.bootstrap import LEVEL, RESAMPLES, Interval, plain, shown
from maps.cutting import CutResult, cut_pair, pool_cuts
from maps.evidence import (
    ASKED,
    CONTROLS,
    MIN_DISTANCE,
    MIN_MATCHES,
    MIN_POEMS,
    RELATED,
    HeadLift,
    Pair,
    PairSums,
    choose_poems,
    count_pairs,
    head_lifts,
    measure,
    pair_evidence,
    pool,
)
from maps.terminal import table
from maps.verse import is_character

ROLES = {
    "asked": "所问 asked",
    "untrained": "未训练 untrained",
    "control": "对照 control",
    "reverse": "反过来 reverse",
    "related": "相关 related",
}
NOTES = {
    "zh": [
        f"只算 key 在 query 之前至少 {MIN_DISTANCE} 个字的地方；标点和篇首不算「别的字」。",
        "lift 1（倍数一）：query 这个字给 key 的权重，是各首诗里这个字给同样位置上别的字的平均权重的几倍；"
        "lift 2（倍数二）：key 从 query 得到的权重，是各首诗里 key 这个字从同样位置上别的字得到的平均权重的几倍。"
        "1 = 没有偏好。",
        f"位置按（诗里第几句、句长、句中第几字、距离）匹配；同样的格子不足 {MIN_MATCHES} 个时不管第几句，"
        "还不足时只按距离（「只按距离」一栏是这种例子所占的比例，先 lift 1 后 lift 2）。"
        "「+」后面是没有任何格子可比的例子，不计入 n。",
        "头在训练诗上选（两个 lift 中较小者最大的头），在留出的诗上评。",
        f"方括号：{LEVEL:.0%} 置信区间，以诗为单位的自助法（bootstrap），重抽样 {RESAMPLES} 次；三十来首诗时，这种区间在"
        f"模拟里 100 次有 90 次以上包含真值。少于 {MIN_POEMS} 首诗不给倍数和区间。",
        "替一对字选出的头，往往有些偏爱它，所以要看对照：未训练的模型（各头一样，人人平分；它的倍数离 1 多远，就是"
        "位置还有多少没有配准）、别的字对、所有头的平均。",
        "对照：光→月 用 山、人；别的字对，用这样两个字：站在 query 前面的诗数和 key 最接近；它们也可能有意义。",
        "比模型一次能读的更长的文字，只算开头那一段。",
        "剪断：把 query→key 的权重设为 0，该行其余权重重新归一；"
        "看真正的下一个字的对数概率变了多少，与剪断离 key 最近的另一个字的边相比。",
    ],
    "en": [
        f"The key stands {MIN_DISTANCE} or more before the query; punctuation and the start of the "
        "text never serve as other characters.",
        "Lift 1: weight of the key over the mean weight that the same query character, in all poems "
        "looked at, gives to other characters in the same places. Lift 2: over the mean weight that the "
        "same key character gets there from others. 1 = no preference.",
        "Places are matched by line of the poem, length of the line, place in it and distance; where fewer "
        f"than {MIN_MATCHES} others are found without the first of these, and then by distance alone "
        "(the share of such cases, lift 1 and lift 2, has a column). Behind + stand the cases that nothing "
        "can be compared with; n is without them.",
        "The head is chosen on training poems (greatest smaller lift) and judged on held-out poems.",
        f"Intervals: {LEVEL:.0%} bootstrap over poems, {RESAMPLES} draws; with about 30 poems such "
        "intervals held the true value in 90 or more of 100 simulated cases. No lift and no interval below "
        f"{MIN_POEMS} poems.",
        "A head chosen for a pair often prefers it somewhat anyway: compare with the untrained model (its heads "
        "are all alike and share out evenly; how far it is from 1 is how far places are not matched), with "
        "other pairs and with the mean over all heads.",
        "Controls: 山 and 人 for 光→月; for another pair the two keys that stand before the query in most "
        "nearly as many poems, which may mean something too.",
        "Of texts longer than the model reads at once the beginning counts.",
        "A cut sets the weight query→key to zero and renormalises the row; what counts is the change "
        "of the true next character's log-probability, beside a cut to the other character nearest to "
        "the key.",
    ],
}


@dataclass(frozen=True)
class Row:
    """A line of the table: a pair in one head (of each training), on held-out poems."""

    pair: Pair
    own_head: bool  # the head is the one that this pair's training poems chose
    layer: int | None  # from 0; None where trainings with different heads are pooled
    head: int | None
    sums: PairSums  # of that head alone
    mean: PairSums  # of the mean over all heads


@dataclass(frozen=True)
class Evidence:
    """All that is said about a pair, of one training or of several pooled."""

    rows: list[Row]
    cuts: list[CutResult]
    n_train: int
    n_held_out: int
    heads: list[HeadLift] = field(default_factory=list)  # the asked pair, all heads, held out
    train_heads: list[HeadLift] = field(default_factory=list)  # the same on training poems
    partners: list[dict] = field(default_factory=list)  # from lookup.partner_dicts


def questions(query: str, key: str, documents: Sequence[str]) -> list[Pair]:
    """The asked pair, its controls and the reverse question; 光→月 with related pairs as well. The
    controls of another pair are the two keys that stand before the query in most nearly as many of the
    documents as the asked one."""
    asked = Pair(query, key)
    if asked == ASKED:
        return [asked, *RELATED, *CONTROLS]
    counts = count_pairs(documents, query)
    others = filter(is_character, counts.keys() - {query, key})
    others = sorted(others, key=lambda c: (abs(counts[c] - counts[key]), c))
    controls = [Pair(query, other, "control") for other in others[:2]]
    reverse = [Pair(key, query, "reverse")] if key != query else []
    return [asked, *controls, *reverse]


def gather_evidence(
    model,
    untrained,
    vocabulary,
    train: Sequence[str],
    held_out: Sequence[str],
    query: str = ASKED.query,
    key: str = ASKED.key,
    partners: Sequence[dict] = (),
) -> Evidence:
    """Ask the pair and everything it is compared with. `untrained` is the model of step 0. Texts
    longer than the model's block count with their beginning."""
    longest = model.config.block_size - 1
    train, held_out = ([text[:longest] for text in texts] for texts in (train, held_out))
    pairs = questions(query, key, [*train, *held_out])  # the same whichever tenth is held out
    chosen_on, judged_on = (choose_poems(texts, pairs) or texts[:1] for texts in (train, held_out))
    results = pair_evidence(model, vocabulary, chosen_on, judged_on, pairs)
    asked = results[0]
    at = (asked.layer, asked.head)
    of_untrained = [replace(pair, role="untrained") for pair in pairs if pair.role != "related"]
    before = iter(measure(untrained, vocabulary, judged_on, of_untrained))
    rows = [_row(asked.sums, at), _row(next(before), at, own=False)]
    for result in results[1:]:
        own = _row(result.sums, (result.layer, result.head))
        if result.pair.role == "related":
            rows.append(own)
        else:
            rows += [_row(result.sums, at, own=False), own, _row(next(before), at, own=False)]
    return Evidence(
        rows,
        cut_pair(model, vocabulary, held_out, asked.pair, *at),
        len(train),
        len(held_out),
        asked.held_out,
        asked.train,
        list(partners),
    )


def _row(sums: PairSums, at: tuple[int, int], own: bool = True) -> Row:
    return Row(sums.pair, own, *at, sums.of_head(*at), sums.mean_of_heads())


def pool_evidence(trainings: Sequence[Evidence]) -> Evidence:
    """Several trainings as one: each row is measured in each training's own head. A poem that was
    judged in several trainings is drawn as one."""
    rows = []
    for parts in zip(*(training.rows for training in trainings), strict=True):
        if len({part.pair for part in parts}) > 1:
            raise ValueError("the trainings were asked different questions")
        heads = {(part.layer, part.head) for part in parts}
        layer, head = heads.pop() if len(heads) == 1 else (None, None)
        sums, mean = pool([part.sums for part in parts]), pool([part.mean for part in parts])
        rows.append(Row(parts[0].pair, parts[0].own_head, layer, head, sums, mean))
    cuts = [
        pool_cuts(parts) for parts in zip(*(training.cuts for training in trainings), strict=True)
    ]
    return Evidence(
        rows,
        cuts,
        sum(training.n_train for training in trainings),
        sum(training.n_held_out for training in trainings),
    )


def _rounded(interval: Interval | None) -> list[float] | None:
    """[value, low, high], or None where there is no number."""
    return None if interval is None or interval.value != interval.value else plain(interval)


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return None if value != value else round(value, 4)


def _one_up(number: int | None) -> int | None:
    return None if number is None else number + 1


def evidence_dict(evidence: Evidence) -> dict:
    """For JSON and the page (plain values, no NaN; layers and heads from 1, an interval is
    [value, low, high] or None where n is too small)."""
    asked = evidence.rows[0]
    rows = []
    for row in evidence.rows:
        [lift], [mean] = head_lifts(row.sums), head_lifts(row.mean)
        rows.append(
            {
                "query": row.pair.query,
                "key": row.pair.key_name,
                "role": row.pair.role,
                "own_head": row.own_head,
                "n": row.sums.n,
                "left_out": row.sums.left_out,
                "by_distance": [
                    _number(share) for share in row.sums.by_distance.sum(0) / max(1, row.sums.n)
                ],
                "poems": row.sums.n_poems,
                "layer": _one_up(row.layer),
                "head": _one_up(row.head),
                "weight": _number(lift.weight),
                "uniform": _number(lift.uniform),
                "lift1": _rounded(lift.lift1),
                "lift2": _rounded(lift.lift2),
                "mean_heads_lift1": _rounded(mean.lift1),
                "mean_heads_lift2": _rounded(mean.lift2),
                "top_share": _number(lift.top_share),
                "too_small": row.sums.n_poems < MIN_POEMS,
            }
        )
    train = {(lift.layer, lift.head): lift for lift in evidence.train_heads}
    heads = []
    for lift in evidence.heads:
        on_train = train[lift.layer, lift.head]
        heads.append(
            {
                "layer": lift.layer + 1,
                "head": lift.head + 1,
                "chosen": (lift.layer, lift.head) == (asked.layer, asked.head),
                "weight": _number(lift.weight),
                "lift1": _rounded(lift.lift1),
                "lift2": _rounded(lift.lift2),
                "top_share": _number(lift.top_share),
                "train_lift1": on_train.lift1 and round(on_train.lift1.value, 4),
                "train_lift2": on_train.lift2 and round(on_train.lift2.value, 4),
            }
        )
    cuts = []
    for number, cut in enumerate(evidence.cuts):
        # In the order of cut_pair: the chosen head, each layer, all.
        last = number == len(evidence.cuts) - 1
        cuts.append(
            {
                "scope": "head" if number == 0 else "all" if last else "layer",
                "layer": _one_up(cut.layer),
                "head": _one_up(cut.head),
                "n": len(cut.poems),
                **{name: _rounded(value) for name, value in cut.intervals().items()},
                "before_character": {
                    "n": int(cut.before_character.sum()),
                    **{
                        name: _rounded(value)
                        for name, value in cut.intervals(cut.before_character).items()
                    },
                },
            }
        )
    return {
        "query": asked.pair.query,
        "key": asked.pair.key,
        "min_distance": MIN_DISTANCE,
        "min_n": MIN_POEMS,
        "poems": {"train": evidence.n_train, "val": evidence.n_held_out},
        "chosen": {"layer": _one_up(asked.layer), "head": _one_up(asked.head)},
        "rows": rows,
        "heads": heads,
        "cuts": cuts,
        "partners": evidence.partners,
        "notes": NOTES,
    }


def _interval(value: Sequence[float] | None, digits: int = 2) -> str:
    if value is None:
        return "n too small 例太少"
    return shown(value, digits)


def _place(layer: int | None, head: int | None) -> str:
    if layer is None and head is None:
        return "-"
    return f"L{layer}" if head is None else f"L{layer} H{head}"


def format_evidence(data: dict) -> str:
    """Tables for the terminal, from `evidence_dict`."""
    parts = [_format_rows(data), _format_heads(data), _format_cuts(data)]
    notes = "\n".join(f"- {note}" for notes in data["notes"].values() for note in notes)
    return "\n\n".join([*(part for part in parts if part), notes])


def _format_rows(data: dict) -> str:
    rows = []
    for row in data["rows"]:
        share = row["top_share"]
        place = _place(row["layer"], row["head"])
        rows.append(
            [
                f"{row['query']}→{row['key']}",
                ROLES[row["role"]],
                place + ("" if row["own_head"] else "°"),
                str(row["n"]) + (f" +{row['left_out']}" if row["left_out"] else ""),
                ", ".join(f"{share:.0%}" for share in row["by_distance"]) if row["n"] else "-",
                "-" if row["weight"] is None else f"{row['weight']:.3f}",
                _interval(row["lift1"]),
                _interval(row["lift2"]),
                "-" if share is None else f"{share:.0%}",
                _interval(row["mean_heads_lift1"]) if row["mean_heads_lift1"] else "-",
            ]
        )
    head = [
        "字对 pair",
        "",
        "头 head",
        "例 n",
        "只按距离 by distance alone",
        "权重 weight",
        "lift 1",
        "lift 2",
        "最多 top",
        "各头平均 lift 1, mean of heads",
    ]
    val, train = data["poems"]["val"], data["poems"]["train"]
    held = f"留出的诗 held-out poems {val}; 选头用 head chosen on {train}"
    note = (
        "° 在第一行的头里 in the head of the first row; "
        "别的行在最适合那一对的头里 the other rows in the head that suits the pair best"
    )
    return f"证据 evidence: {held}\n{table(head, rows, left=3)}\n{note}"


def _format_heads(data: dict) -> str:
    if not data["heads"]:
        return ""
    rows = []
    for row in data["heads"]:
        trained = [row["train_lift1"], row["train_lift2"]]
        rows.append(
            [
                _place(row["layer"], row["head"]) + (" *" if row["chosen"] else ""),
                "-" if row["weight"] is None else f"{row['weight']:.3f}",
                _interval(row["lift1"]),
                _interval(row["lift2"]),
                "-" if row["top_share"] is None else f"{row['top_share']:.0%}",
                *("-" if value is None else f"{value:.2f}" for value in trained),
            ]
        )
    head = [
        "头 head",
        "权重 weight",
        "lift 1",
        "lift 2",
        "最多 top",
        "train lift 1",
        "train lift 2",
    ]
    title = f"{data['query']}→{data['key']}: 所有的头 all heads, held-out poems (* chosen)"
    return f"{title}\n{table(head, rows)}"


def _format_cuts(data: dict) -> str:
    if not data["cuts"] or not data["cuts"][0]["n"]:
        return ""
    rows = []
    scopes = {"head": "one head 一个头", "layer": "layer 整层", "all": "all 全部"}
    for cut in data["cuts"]:
        place = _place(cut["layer"], cut["head"])
        rows.append(
            [
                f"{scopes[cut['scope']]} {'' if cut['scope'] == 'all' else place}".rstrip(),
                str(cut["n"]),
                *(_interval(cut[name], 3) for name in ("cut", "control", "difference")),
                _interval(cut["before_character"]["difference"], 3),
            ]
        )
    head = [
        "剪断 cut",
        "例 n",
        "这条边 this edge",
        "另一条 other edge",
        "相差 difference",
        "后面是字时 where a character follows",
    ]
    title = (
        f"{data['query']}→{data['key']} 剪断 cut: 真正的下一个字的对数概率变了多少 change of the true next "
        "character's log-probability, nats（低于零：这条边有用 below zero: the edge helped）"
    )
    return f"{title}\n{table(head, rows)}"
