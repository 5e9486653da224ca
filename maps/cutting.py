"""Cut an edge: what a weight does, not only that it is there.

To cut the edge from a query to a key is to set that weight to zero and to divide what is left of
the row by its sum, which is the softmax without that key. What changes is the probability of the
character that follows the query.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from maps.bootstrap import Interval, mean_interval
from maps.corpus_maps import BATCH, attention_over, by_length, evaluating, hooked
from maps.evidence import MIN_DISTANCE, MIN_POEMS, Pair, contains_pair, find_cells
from maps.verse import is_character, read_verse

LEAST_WEIGHT = 0.05  # cells of a text with less weight are not worth a cut
TOP = 3  # characters that are likeliest after a cut, for the page


@contextmanager
def cut_edges(
    model: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, heads: torch.Tensor
) -> Iterator[None]:
    """Inside, each text b of a batch lacks the edge query[b] -> key[b] in the heads marked.

    query, key (B,) positions, key <= query; heads (B, n_layer, n_head) bool. Where the key is all
    that the query may look at, nothing is cut.
    """
    text = torch.arange(len(query))

    def cutter(marked: torch.Tensor):
        def cut(attention, inputs, output):
            q, k, v = attention.qkv(inputs[0])
            weights = attention.weights(q, k)
            rows = weights[text, :, query]  # (B, H, T), a copy
            edge = torch.zeros_like(rows)
            edge[text, :, key] = marked.to(rows.dtype)
            left = rows * (1 - edge)
            total = left.sum(-1, keepdim=True)
            weights[text, :, query] = torch.where(total > 0, left / total, rows)
            return attention.merge(weights @ v)

        return cut

    layers = [at for at in range(heads.size(1)) if heads[:, at].any()]
    hooks = [
        model.blocks[at].attn.register_forward_hook(cutter(heads[:, at].to(query.device)))
        for at in layers
    ]
    with hooked(hooks):
        yield


def next_log_probabilities(
    model: torch.nn.Module,
    idx: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    heads: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probabilities (B, V) in nats of what follows position query[b] of each text of idx (B, T),
    with the edges to `key` cut in `heads` where those are given."""
    with evaluating(model):
        if key is None or heads is None:
            x = model.hidden(idx)
        else:
            with cut_edges(model, query, key, heads):
                x = model.hidden(idx)
        return model.lm_head(x[torch.arange(len(idx)), query]).log_softmax(-1)


def head_mask(model, layer: int | None = None, head: int | None = None) -> torch.Tensor:
    """(n_layer, n_head) bool: one head, all heads of a layer, or (None, None) all; from 0."""
    mask = torch.zeros(model.config.n_layer, model.config.n_head, dtype=torch.bool)
    mask[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    return mask


@dataclass(frozen=True)
class CutResult:
    """What cutting the edges of a pair did, for N occurrences: change of the true next character's
    log-probability in nats (negative: the edge helped), beside that of another edge."""

    layer: int | None  # from 0; None where all heads of a layer, or of all layers, were cut
    head: int | None
    poems: list[str]  # (N,) clusters of the bootstrap
    cut: np.ndarray  # (N,)
    control: np.ndarray  # (N,) mean over one or two edges to another character near the key
    before_character: np.ndarray  # (N,) bool: a character follows, not punctuation or the end

    def intervals(self, members: np.ndarray | None = None) -> dict[str, Interval | None]:
        """Means of cut, control and their difference, None with fewer than MIN_POEMS poems."""
        at = np.arange(len(self.poems)) if members is None else np.flatnonzero(members)
        poems = [self.poems[n] for n in at]
        values = {"cut": self.cut, "control": self.control, "difference": self.cut - self.control}
        enough = len(set(poems)) >= MIN_POEMS
        return {
            name: mean_interval(poems, array[at]) if enough else None
            for name, array in values.items()
        }


def pool_cuts(parts: Sequence[CutResult]) -> CutResult:
    """The same cut in several trainings, each in its own head, as one."""
    return CutResult(
        None if len({part.layer for part in parts}) > 1 else parts[0].layer,
        None if len({part.head for part in parts}) > 1 else parts[0].head,
        [poem for part in parts for poem in part.poems],
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("cut", "control", "before_character")
        ),
    )


def nearest_others(verse, pair: Pair, query: int, key: int) -> list[int]:
    """The keys nearest to `key` (one, or two at equal distance) that are other characters, seen by
    the same query at MIN_DISTANCE or more."""
    excluded = {ord(c) for c in pair.query + pair.key}
    others = [
        at
        for at in range(1, query - MIN_DISTANCE + 1)
        if verse.character[at] and verse.codes[at] not in excluded
    ]
    nearest = min((abs(at - key) for at in others), default=0)
    return [at for at in others if abs(at - key) == nearest]


def cut_pair(
    model, vocabulary, documents: Sequence[str], pair: Pair, layer: int, head: int
) -> list[CutResult]:
    """Cut every edge query -> key of a pair in the documents (held-out ones): in the given head
    (from 0), in each layer, in all layers, beside an edge from the same query to the other character
    nearest to the key. The true next character counts, whether character, punctuation or end.
    """
    poems = [text[: model.config.block_size - 1] for text in documents]
    poems = [text for text in poems if contains_pair(text, pair)]
    verses = [read_verse("\n" + poem) for poem in poems]
    cells = find_cells(verses, pair, others=False)
    edges = []  # (occurrence, poem, query, key, share of the occurrence, is control)
    occurrences = []
    for poem, query, key in zip(cells.poem, cells.query, cells.key, strict=True):
        others = nearest_others(verses[poem], pair, query, key)
        if not others:
            continue
        edges.append((len(occurrences), poem, query, key, 1.0, False))
        edges += [(len(occurrences), poem, query, at, 1 / len(others), True) for at in others]
        following = ("\n" + poems[poem] + "\n")[query + 1]
        occurrences.append((poems[poem], is_character(following)))
    scopes = [(layer, head), *((at, None) for at in range(model.config.n_layer)), (None, None)]
    change = np.zeros((len(scopes), len(occurrences), 2))
    for group in by_length([poems[edge[1]] for edge in edges]):
        some = [edges[at] for at in group]
        texts = [vocabulary.encode("\n" + poems[edge[1]] + "\n") for edge in some]
        full = torch.tensor(texts, device=next(model.parameters()).device)
        query = torch.tensor([int(edge[2]) for edge in some], device=full.device)
        key = torch.tensor([int(edge[3]) for edge in some], device=full.device)
        true_next = full.gather(1, query[:, None] + 1)
        before = next_log_probabilities(model, full[:, :-1], query).gather(1, true_next)
        for number, scope in enumerate(scopes):
            heads = head_mask(model, *scope).expand(len(some), -1, -1)
            after = next_log_probabilities(model, full[:, :-1], query, key, heads)
            delta = (after.gather(1, true_next) - before)[:, 0].cpu().numpy()
            for edge, nats in zip(some, delta, strict=True):
                change[number, edge[0], int(edge[5])] += edge[4] * nats
    names = [poem for poem, _ in occurrences]
    character = np.array([flag for _, flag in occurrences], dtype=bool)
    return [
        CutResult(*scope, names, change[number, :, 0], change[number, :, 1], character)
        for number, scope in enumerate(scopes)
    ]


def cuts_for_text(model, vocabulary, text: str) -> list[dict]:
    """Cuts of one text for the page: for every cell with at least LEAST_WEIGHT, in that head; and
    for the same (query, key) in all heads of each layer and in all layers.

    Each is {"layer", "head" (from 1, None: all), "query", "key" (positions, 0 is the start), "delta"
    (change of the true next character's log-probability, nats; None at the end of the text), "top"
    ([character, probability] of the likeliest after the cut)}.
    """
    [(_, weights)] = attention_over(model, vocabulary, [text])
    weights = weights[:, :, 0]
    device = next(model.parameters()).device
    ids = torch.tensor(vocabulary.encode("\n" + text), device=device)[: weights.shape[-1]]
    results = []
    for query in range(1, len(ids)):
        strong = np.argwhere(weights[:, :, query, : query + 1] >= LEAST_WEIGHT).tolist()
        keys = sorted({key for _, _, key in strong})
        cuts: list[tuple[int | None, int | None, int]] = [tuple(cell) for cell in strong]
        cuts += [(layer, None, key) for key in keys for layer in range(len(weights))]
        cuts += [(None, None, key) for key in keys]
        # Nothing behind the query can reach it: the text up to it is enough.
        idx, at = ids[None, : query + 1], torch.tensor([query], device=device)
        true_next = int(ids[query + 1]) if query + 1 < len(ids) else None
        before = next_log_probabilities(model, idx, at)[0]
        for start in range(0, len(cuts), BATCH):
            some = cuts[start : start + BATCH]
            after = next_log_probabilities(
                model,
                idx.expand(len(some), -1),
                at.expand(len(some)),
                torch.tensor([key for _, _, key in some], device=device),
                torch.stack([head_mask(model, layer, head) for layer, head, _ in some]),
            )
            likeliest = after.topk(min(TOP, after.size(1)))
            for row, (layer, head, key) in enumerate(some):
                delta = (
                    None if true_next is None else float(after[row, true_next] - before[true_next])
                )
                shown = zip(likeliest.indices[row], likeliest.values[row].exp(), strict=True)
                results.append(
                    {
                        "layer": None if layer is None else layer + 1,
                        "head": None if head is None else head + 1,
                        "query": query,
                        "key": key,
                        "delta": delta,
                        "top": [[vocabulary.decode([int(c)]), float(p)] for c, p in shown],
                    }
                )
    return results
