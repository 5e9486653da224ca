"""A small GPT: characters in, the next character's logits out.

Read it from top to bottom: the settings, the attention head of the lesson, the MLP, the block
that joins them, and the model that stacks the blocks. Shapes: B poems in a batch, T characters,
C = n_embd channels, H = n_head heads, D = C / H channels a head, V characters in the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.functions import attention, norm, squared_relu
from model.loss import IGNORE, linear_cross_entropy

# Up to this length our own attention is the faster on a CPU, where torch 2.13's kernel has no fast way
# for a mask that is learned; of longer texts it would hold too much.
SHORT = 1024


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model. Raises ValueError where they contradict each other."""

    vocab_size: int
    block_size: int = 65  # the longest regular poem has 64 characters; one more for its start
    n_layer: int = 3
    n_head: int = 8
    n_embd: int = 128
    dropout: float = 0.0
    cutoff: int = 2048  # characters that the output layer counts as common, see OutputLayer

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "cutoff"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        characters = 2 * self.vocab_size + (self.vocab_size > self.cutoff)
        block = 12 * self.n_embd**2 + self.n_head * self.block_size
        return characters * self.n_embd + self.n_layer * block


class CausalSelfAttention(nn.Module):
    """H heads that look back. `explicit` does it in the lesson's five lines and also hands out the
    weights; `forward` trains, the fastest way that this machine has. They are equal to rounding, in
    values and gradients."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.head_size = config.n_embd // config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)  # W_q, W_k, W_v
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        # How much each head likes to look a given number of characters back, whatever stands there
        # (T5's relative positions, arXiv:1910.10683, one for each distance).
        self.distance_bias = nn.Parameter(torch.zeros(config.n_head, config.block_size))
        position = torch.arange(config.block_size)
        distance = position[:, None] - position
        # Computed anew from the sizes, so it does not belong in a checkpoint.
        # Those ahead are masked; at distance 0 all of them would wait for one number's gradient on a GPU.
        self.register_buffer("distance", distance.abs(), persistent=False)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each character asks for, offers and hands over: x (B, T, C) -> q, k, v, each
        (B, H, T, D)."""
        B, T, _ = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, self.head_size).unbind(2)
        # On a CPU attention in bfloat16 is several times slower than in float32.
        dtype = torch.float32 if x.device.type == "cpu" else v.dtype
        return tuple(y.transpose(1, 2).to(dtype) for y in (q, k, v))

    def mask(self, T: int) -> Tensor:
        """What is added to the scores of T characters: the heads' liking for each distance, and
        minus infinity where the key comes later than the query -> (H, T, T)."""
        liking = self.distance_bias[:, self.distance[:T, :T]]
        return liking + torch.full((T, T), -math.inf, device=liking.device).triu(1)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """How much each character (row) looks at each earlier one (column).

        q, k (B, H, T, D) -> (B, H, T, T); every row sums to 1, the upper triangle is exactly 0.
        """
        scores = q / math.sqrt(self.head_size) @ k.transpose(-2, -1)
        return (scores + self.mask(q.size(-2))).softmax(-1)

    def merge(self, y: Tensor) -> Tensor:
        """Join the heads: y (B, H, T, D) -> (B, T, C)."""
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def explicit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, C) -> the same output as `forward` without dropout, and weights (B, H, T, T)."""
        q, k, v = self.qkv(x)
        weights = self.weights(q, k)
        return self.merge(weights @ v), weights

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, C) -> (B, T, C)."""
        mask, dropout = self.mask(x.size(1)), self.dropout if self.training else 0.0
        if x.device.type == "cpu" and x.size(1) <= SHORT and not dropout:
            return self.c_proj(attention(self.c_attn(x), mask))
        q, k, v = self.qkv(x)
        with torch.autocast(x.device.type, enabled=False):  # keep the dtype that qkv chose
            y = F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype), dropout)
        return self.merge(y)


class MLP(nn.Module):
    """Two layers with squared ReLU between: each character thinks for itself about what it
    gathered."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, C) -> (B, T, C)."""
        return self.c_proj(squared_relu(self.c_fc(x)))


class Block(nn.Module):
    """Look back, then think; each adds to what is already known (pre-norm residual block)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(config)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, C) -> (B, T, C)."""
        x = x + self.drop(self.attn(norm(x)))
        return x + self.drop(self.mlp(norm(x)))


class OutputLayer(nn.Module):
    """The next character's logits, in two steps where there are many characters: first among the
    `cutoff` common ones and "a rare one", then which rare one it is (adaptive softmax,
    arXiv:1609.04309). Ids must run from common to rare, as those of data.vocabulary do.

    The probabilities sum to 1 all the same. Training is faster, as a place whose next character is
    common never touches the rare ones: of the Tang poems' 6,244 characters the commonest 2,048 are 97
    in 100 of the text.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        V, n = config.vocab_size, config.cutoff
        self.n_common = min(n, V)
        # The last row is "a rare one", where there are any.
        self.common = nn.Linear(config.n_embd, n + 1 if n < V else V, bias=False)
        self.rare = nn.Linear(config.n_embd, V - n, bias=False) if n < V else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C) -> logits in float32 (…, V)."""
        logits = self.common(x).float()
        if self.rare is None:
            return logits
        common, a_rare_one = logits.tensor_split([self.n_common], -1)
        which = self.rare(x).float().log_softmax(-1)
        return torch.cat([common, a_rare_one + which], -1)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The sum of cross_entropy(forward(x), targets) for x (…, C) and targets (…), without the
        logits of all rows in memory, nor of the rare characters where another one is the target."""
        x, targets, n = x.flatten(0, -2), targets.flatten(), self.n_common
        loss = linear_cross_entropy(x, self.common.weight, targets.clamp(max=n))
        if self.rare is not None:
            rare = targets >= n
            loss = loss + linear_cross_entropy(x[rare], self.rare.weight, targets[rare] - n)
        return loss


class GPT(nn.Module):
    """Embedding, blocks, output layer. The output layer starts at zero: before training every common
    character is equally likely, and every rare one."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.lm_head = OutputLayer(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform weights of variance 1/(3 fan_in), as nn.Linear's own. Each matrix that writes to
        the residual stream starts at zero, so that a new block changes nothing (arXiv:1901.09321).
        So do W_q and the liking for distances: before training every head looks at all characters
        alike, the average of the lesson's first step, and whatever it prefers later it has learned.
        """
        for name, p in self.named_parameters():
            if name == "wte.weight":
                nn.init.normal_(p)
            elif name.startswith("lm_head") or name.endswith(("c_proj.weight", "distance_bias")):
                nn.init.zeros_(p)
            else:
                nn.init.uniform_(p, -(p.size(1) ** -0.5), p.size(1) ** -0.5)
        for block in self.blocks:
            nn.init.zeros_(block.attn.c_attn.weight[: self.config.n_embd])

    def hidden(self, idx: Tensor) -> Tensor:
        """idx (B, T) character ids, T <= block_size -> (B, T, C), what the output layer reads."""
        if idx.size(1) > self.config.block_size:
            raise ValueError(f"{idx.size(1)} characters, block_size is {self.config.block_size}")
        x = self.drop(norm(self.wte(idx)))
        for block in self.blocks:
            x = block(x)
        return norm(x)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """idx (B, T) -> logits (B, T, V), and where targets (B, T) are given the mean loss in nats
        a character over the targets that are not IGNORE."""
        logits = self.lm_head(self.hidden(idx))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        return logits, loss

    def loss(self, idx: Tensor, targets: Tensor) -> Tensor:
        """The losses that `forward` takes the mean of, summed, without the logits of the whole batch
        in memory: what training uses."""
        return self.lm_head.loss(self.hidden(idx), targets)
