"""Optimizers and the learning rate's course."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from model.gpt import GPT

# Of a x + b x^3 + c x^5, one after the other: each is the polynomial that comes nearest to 1 wherever
# those before it have moved the interval from 0.01 to 1 (Polar Express, arXiv:2505.16932). They end
# between 0.73 and 1.27 in nine products; Muon's own coefficients, five times the same, take fifteen.
QUINTICS = (
    (8.0934, -23.6205, 17.4462),
    (3.6366, -2.7219, 0.5365),
    (2.6613, -1.9772, 0.4526),
)
# Above 1 the first quintic is steep: a matrix with one direction must not be rounded to there.
MARGIN = 1.02


def orthogonalize(g: Tensor) -> Tensor:
    """Move the singular values of each matrix in g (n, rows, columns) near 1, those of more than a
    hundredth of its norm to 0.7 to 1.3, in bfloat16 as torch.optim.Muon does."""
    tall = g.size(-2) > g.size(-1)
    x = g.mT.bfloat16() if tall else g.bfloat16()
    x = x / (MARGIN * x.flatten(1).norm(dim=1)).clamp(min=1e-7)[:, None, None]
    for a, b, c in QUINTICS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizer:
    """Groups of parameters with their settings, and what is remembered of each parameter: the part of
    torch.optim.Optimizer that training needs. The first one made of torch's own loads torch's
    compiler: more than a second before the first step, and 80 MB.

    A group is a dict of "params" and its settings; `settings` are for all groups that have no other.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        self.param_groups = [settings | group for group in groups]
        self.state = {p: {} for group in self.param_groups for p in group["params"]}

    def state_dict(self) -> list[dict[str, Tensor]]:
        """What is remembered of each parameter, in their order; settings are not."""
        return list(self.state.values())

    def load_state_dict(self, saved: list[dict[str, Tensor]]) -> None:
        """Take over what `state_dict` gave. Raises ValueError where it is of other parameters: the
        fused step would write beyond a smaller tensor."""
        shapes = [{x.shape for x in state.values() if x.ndim} for state in saved]
        if len(saved) != len(self.state) or any(
            of_state - {p.shape} for p, of_state in zip(self.state, shapes, strict=True)
        ):
            raise ValueError("the optimizer's state is of other parameters")
        for p, state in zip(self.state, saved, strict=True):
            self.state[p] = {name: x.to(p.device, copy=True) for name, x in state.items()}


class AdamW(Optimizer):
    """torch.optim.AdamW (arXiv:1711.05101), by its function that updates all at once. A group's
    settings are lr, betas and weight_decay."""

    @torch.no_grad()
    def step(self, share: float = 1.0) -> None:
        """One step, at this share of each group's lr."""
        for group in self.param_groups:
            params = group["params"]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                        "step": torch.zeros((), device=p.device),
                    }
            averages, squares, steps = (
                [self.state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq", "step")
            )
            adamw(
                params,
                [p.grad for p in params],
                averages,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=group["lr"] * share,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=1e-8,
            )


class Muon(Optimizer):
    """torch.optim.Muon (Jordan et al. 2024, kellerjordan.github.io) with the matrices of one shape
    orthogonalised together, as on a CPU the many small products cost more in overhead than in
    arithmetic, and in three iterations for five. With its coefficients it is equal to it in rounding
    (tests).

    A group's settings are lr, momentum, weight_decay and pieces: each of its parameters is so many
    matrices of one size, one below the other.
    """

    @torch.no_grad()
    def step(self, share: float = 1.0) -> None:
        """One step, at this share of each group's lr: Nesterov momentum, orthogonalised, scaled by
        sqrt(rows / columns) if tall."""
        for group in self.param_groups:
            lr = group["lr"] * share
            shapes = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for (rows, columns), params in shapes.items():
                for p in params:
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                buffers = [self.state[p]["momentum_buffer"] for p in params]
                grads = [p.grad for p in params]
                torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
                updates = torch._foreach_lerp(grads, buffers, group["momentum"])
                rows //= group["pieces"]
                matrices = orthogonalize(torch.stack(updates).view(-1, rows, columns))
                updates = matrices.to(params[0].dtype).view(len(params), -1, columns).unbind()
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
                scale = math.sqrt(max(1, rows / columns))
                torch._foreach_add_(params, updates, alpha=-lr * scale)


def make_optimizers(
    model: GPT,
    embedding_lr: float,
    output_lr: float,
    muon_lr: float,
    muon_momentum: float,
    weight_decay: float,
) -> list[Optimizer]:
    """Muon for the matrices inside the blocks, W_q, W_k and W_v each for itself; AdamW for the
    embedding and the output layer, whose rows belong to single characters, each at its own rate, and
    for the heads' liking for distances. `weight_decay` is for Muon's matrices and the output layer;
    the embedding loses as much of itself in a step as the output layer.

    AdamW has a long memory of squares (0.99): with a short one a row whose character is rare takes a
    leap whenever it occurs.
    """
    stacked = [block.attn.c_attn.weight for block in model.blocks]
    biases = [block.attn.distance_bias for block in model.blocks]
    others = [p for p in model.blocks.parameters() if p not in {*stacked, *biases}]
    matrices = [{"params": stacked, "pieces": 3}, {"params": others, "pieces": 1}]
    head = list(model.lm_head.parameters())
    rows = [
        {
            "params": [model.wte.weight],
            "lr": embedding_lr,
            "weight_decay": weight_decay * output_lr / embedding_lr,
        },
        {"params": head, "lr": output_lr, "weight_decay": weight_decay},
        {"params": biases, "lr": muon_lr, "weight_decay": 0.0},
    ]
    return [
        Muon(matrices, lr=muon_lr, momentum=muon_momentum, weight_decay=weight_decay),
        AdamW(rows, betas=(0.8, 0.99)),
    ]


def clip_gradients(model: nn.Module, most: float) -> None:
    """Scale the gradients so that the norm of all of them together is at most `most`, as torch's
    clip_grad_norm_, which goes over them also where it changes nothing: nearly always."""
    params = list(model.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in params])
    if norm > most:
        nn.utils.clip_grads_with_norm_(params, most, norm)


def schedule(step: int, max_iters: int, warmup_iters: int, cooldown: float) -> float:
    """The share of the peak learning rate at a step (0 to max_iters - 1): a linear warm-up, a
    plateau, and a linear way down to zero over the last `cooldown` of the run; zero after it."""
    up = (step + 1) / (warmup_iters + 1)
    down = (max_iters - step) / max(1, cooldown * max_iters)
    return max(0.0, min(1.0, up, down))
