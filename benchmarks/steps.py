"""A training step as train.py does it, to be timed part by part or at sizes it never sees."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor, nn

from model.gpt import GPT, IGNORE, GPTConfig
from model.optim import clip_gradients
from train_settings import TrainConfig


class Step:
    """A model with its optimizers; a call trains on one batch. With `timed`, `seconds` sums the
    time of each part of the step over calls."""

    def __init__(self, config: GPTConfig, dtype: torch.dtype, timed: bool = False) -> None:
        torch.manual_seed(0)
        self.model, self.dtype = GPT(config), dtype
        self.optimizers = TrainConfig().optimizers(self.model)
        self.seconds: dict[str, float] = defaultdict(float)
        if timed:
            for block in self.model.blocks:
                self._time(block.attn, "attention")
                self._time(block.mlp, "MLP")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to the part `name`."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def _time(self, module: nn.Module, name: str) -> None:
        """Time a module's forward and backward by hooks at their borders."""
        start = {}

        def begin(way: str) -> None:
            start[way] = time.perf_counter()

        def end(way: str) -> None:
            self.seconds[f"{way}: {name}"] += time.perf_counter() - start[way]

        module.register_forward_pre_hook(lambda *_: begin("forward"))
        module.register_forward_hook(lambda *_: end("forward"))
        module.register_full_backward_pre_hook(lambda *_: begin("backward"))
        module.register_full_backward_hook(lambda *_: end("backward"))

    def __call__(self, idx: Tensor, targets: Tensor) -> None:
        """Forward, backward, clip and update."""
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            with self.part("forward"):
                x = self.model.hidden(idx)
            with self.part("output layer, loss and their gradients"):
                loss = self.model.lm_head.loss(x, targets) / (targets != IGNORE).sum()
        with self.part("backward"):
            loss.backward()
        with self.part("clipping"):
            clip_gradients(self.model, 1.0)
        for optimizer in self.optimizers:
            with self.part(type(optimizer).__name__):
                optimizer.step()
        self.model.zero_grad()


def speed(
    config: GPTConfig, dtype: torch.dtype, text: Tensor, batch_size: int, steps: int
) -> float:
    """Characters a second in training on pieces of a text (ids) as long as the block: the median
    step."""
    windows = text.unfold(0, config.block_size + 1, config.block_size)
    rows = max(1, batch_size // config.block_size)
    step, seconds = Step(config, dtype), []
    for _ in range(2 + steps):  # the first two also allocate
        text = windows[torch.randint(len(windows), (rows,))]
        start = time.perf_counter()
        step(text[:, :-1], text[:, 1:])
        seconds.append(time.perf_counter() - start)
    return rows * config.block_size / median(seconds[2:])
