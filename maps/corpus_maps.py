"""The attention of many texts at once: texts of one length go through the model together."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

BATCH = 64  # texts that go through the model together


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards the model's state is as it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@contextmanager
def hooked(handles: Sequence) -> Iterator[None]:
    """Remove the given hooks at the end, whatever happens."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_length(texts: Sequence[str]) -> Iterator[list[int]]:
    """Indices of the texts in groups of one length, at most BATCH in a group."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        groups[len(text)].append(index)
    for length in sorted(groups):
        for start in range(0, len(groups[length]), BATCH):
            yield groups[length][start : start + BATCH]


def attention_over(
    model: torch.nn.Module, vocabulary, documents: Sequence[str]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield (indices of the documents, weights float32 (n_layer, n_head, B, T, T)).

    Each text is read as "\\n" + document (at most block_size tokens), so that T is its length
    plus one; row = query, column = key. The weights are taken on the explicit path by hooks on the
    attention modules, in evaluation mode whatever the model's state.
    """
    texts = ["\n" + document for document in documents]
    texts = [text[: model.config.block_size] for text in texts]
    device = next(model.parameters()).device
    seen: list[torch.Tensor] = []

    def keep_weights(attention, inputs, output):
        q, k, _ = attention.qkv(inputs[0])
        seen.append(attention.weights(q, k).float().cpu())

    for indices in by_length(texts):
        idx = torch.tensor([vocabulary.encode(texts[i]) for i in indices], device=device)
        hooks = [block.attn.register_forward_hook(keep_weights) for block in model.blocks]
        with hooked(hooks), evaluating(model):
            model.hidden(idx)  # no logits: nobody asks for them, and they cost the most
        weights = torch.stack(seen).transpose(1, 2).numpy()  # (L, B, H, T, T) -> (L, H, B, T, T)
        seen.clear()
        yield indices, weights
