"""The reference recipe: transformers' GPT-2, trained as many tutorials train a small GPT.

4 layers, 4 heads, 128 channels; AdamW 1e-3 with betas (0.9, 0.99), weight decay 0.1 (matrices),
100 steps of warm-up then a cosine to 1e-4, gradient clip 1, 2,000 steps of 12 random windows of 64
characters from the training poems joined by line feeds; no dropout, float32. Weights and their
initialisation (tied output layer) are transformers' own; AdamW is torch's fused one.

It is judged on the held-out poems that train.py judges: each is read whole from the line feed
before it, and each of its characters and the line feed behind it are predicted. A poem of 64
characters has 65 such targets but the model 64 positions: the last one is predicted from the 64
characters before it.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import ROOT, SIZES, positive, require
from command_line import Parser, run
from data.batches import IGNORE, Batches
from data.corpus import POEMS, Corpus, read_texts
from data.vocabulary import BOUNDARY, DataError

WINDOW, ROWS = 64, 12
PEAK, LOW, WARMUP = 1e-3, 1e-4, 100


def build(vocab_size: int) -> nn.Module:
    """The reference's model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=WINDOW,
        **SIZES,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def learning_rate(step: int, max_iters: int) -> float:
    """A linear warm-up, then half a cosine down to LOW."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    share = (step - WARMUP) / max(1, max_iters - WARMUP)
    return LOW + 0.5 * (PEAK - LOW) * (1 + math.cos(math.pi * share))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches) -> float:
    """Mean loss in nats over every target of the held-out poems."""
    total, count = 0.0, 0
    for i in range(len(batches)):
        idx, targets = batches[i]
        logits = [model(idx[:, :WINDOW]).logits]
        for end in range(WINDOW + 1, idx.size(1) + 1):
            logits.append(model(idx[:, end - WINDOW : end], logits_to_keep=1).logits)
        total += _loss(torch.cat(logits, 1), targets, "sum").item()
        count += int((targets != IGNORE).sum())
    return total / count


def _loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction=reduction
    )


def main(argv: list[str]) -> int:
    """Train and write out_dir/metrics.jsonl, whose fields mean what train.py's do."""
    parser = Parser(prog="-m benchmarks.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--out_dir", type=Path, default=ROOT / "out" / "benchmarks" / "reference")
    parser.add_argument("--max_iters", type=positive, default=2000, help="training steps")
    parser.add_argument("--eval_interval", type=int, default=250, help="steps; 0: not at all")
    parser.add_argument("--log_interval", type=positive, default=10, help="steps")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--extra_data", default="", help="a second text to train on, as train.py's")
    args = parser.parse_args(argv)
    require("transformers")

    config = tomllib.loads((ROOT / "configs" / "tang.toml").read_text(encoding="utf-8"))
    documents, extra, _ = read_texts(str(POEMS), args.extra_data)
    corpus = Corpus(documents, config.get("fold", 0), config.get("probes", ()), extra)
    held_out = Batches(corpus.val, corpus.vocabulary, WINDOW + 1, ROWS * WINDOW)
    stream = torch.tensor(
        corpus.vocabulary.encode(BOUNDARY + BOUNDARY.join(corpus.seen) + BOUNDARY)
    )
    windows = stream.unfold(0, WINDOW + 1, 1)

    torch.manual_seed(args.seed)
    model = build(len(corpus.vocabulary))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)

    args.out_dir.mkdir(parents=True, exist_ok=True)
    busy_s, busy_tokens = 0.0, 0
    with open(args.out_dir / "metrics.jsonl", "w", encoding="utf-8", newline="\n") as log:
        for step in range(1, args.max_iters + 1):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step - 1, args.max_iters)
            batch = windows[torch.randint(len(windows), (ROWS,))]
            loss = _loss(model(batch[:, :-1]).logits, batch[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            busy_s += time.perf_counter() - started
            busy_tokens += ROWS * WINDOW
            due = args.eval_interval and (step % args.eval_interval == 0 or step == args.max_iters)
            if due or step % args.log_interval == 0:
                entry = {
                    "step": step,
                    "val_loss": evaluate(model, held_out) if due else None,
                    "tokens": step * ROWS * WINDOW,
                    "tokens_per_s": busy_tokens / busy_s,
                }
                log.write(json.dumps(entry) + "\n")
                log.flush()
                busy_s, busy_tokens = 0.0, 0
    return 0


if __name__ == "__main__":
    run(main, DataError)
