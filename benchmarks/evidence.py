"""Five trainings of the default recipe, each with its own seed and its own held-out tenth, and what
their heads say about 光→月, one by one and pooled: the tables of docs/evidence.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, publish
from benchmarks.runs import execute
from command_line import Parser, UsageError, say
from data.corpus import FOLDS, corpus_of, read_texts
from data.vocabulary import Vocabulary
from maps.evidence import head_lifts
from maps.report import (
    Evidence,
    evidence_dict,
    format_evidence,
    gather_evidence,
    pool_evidence,
)
from model.checkpoint import load_checkpoint, load_model, untrained_model
from train_settings import parse

DOCUMENT = ROOT / "docs" / "evidence.md"
FIRST_SEED = 1337
# 0.975 quantiles of Student's t for 1, 2 … 9 degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def train(out_dir: Path, fold: int, settings: Sequence[str]) -> None:
    """The training that holds out tenth `fold`, the default one but for `settings`; one that is there,
    has the same settings and ended is kept."""
    own = [f"fold={fold}", f"seed={FIRST_SEED + fold}", f"out_dir={out_dir}"]
    flags = [f"--{setting}" for setting in (*settings, *own)]
    config, *_ = parse(flags)
    wanted = asdict(config) | {"probes": list(config.probes)}
    if (out_dir / "ckpt.pt").exists():
        state = load_checkpoint(out_dir / "ckpt.pt")
        # Without probes of its own a training takes the first document that it holds out.
        former = state["config"] | ({} if config.probes else {"probes": []})
        if state["step"] == config.max_iters and former == wanted:
            return
    say(f"training without tenth {fold} ...")
    # In the folder we were started in: the settings may name files from there.
    execute([sys.executable, str(ROOT / "train.py"), "--overwrite", *flags], cwd=Path.cwd())


def judge(out_dir: Path, query: str, key: str) -> tuple[Evidence, float]:
    """The evidence of a training on its own held-out poems, and its held-out loss."""
    model, characters, state = load_model(out_dir / "ckpt.pt")
    corpus = corpus_of(state)
    evidence = gather_evidence(
        model,
        untrained_model(state),
        Vocabulary(characters),
        corpus.train,
        corpus.val,
        query,
        key,
    )
    return evidence, state["val_loss"]


def between(trainings: Sequence[Evidence]) -> str:
    """What the trainings themselves as the sample say of each pair's first lift: the geometric mean
    with Student's t interval, where the bootstrap takes the trainings as given and draws poems."""
    lines = []
    for rows in zip(*(training.rows for training in trainings), strict=True):
        lifts = [head_lifts(row.sums)[0].lift1 for row in rows]
        if not rows[0].own_head or rows[0].pair.role == "untrained" or None in lifts:
            continue
        pair, logs = rows[0].pair, np.log([lift.value for lift in lifts])
        error = T_QUANTILES[len(logs) - 2] * logs.std(ddof=1) / len(logs) ** 0.5
        value, low, high = np.exp(logs.mean() + np.array([0, -error, error]))
        each = ", ".join(f"{lift.value:.2f}" for lift in lifts)
        lines.append(f"{pair.query}→{pair.key_name}  {value:.2f} [{low:.2f}, {high:.2f}]  ({each})")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Train what is missing, judge, pool, print; returns the exit code."""
    parser = Parser(prog="-m benchmarks evidence", description=__doc__)
    parser.add_argument("--out_dir", default="out/evidence", help="where the trainings lie")
    parser.add_argument(
        "--train",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="other settings than the default's",
    )
    parser.add_argument("--trainings", type=int, default=5, help=f"how many, 1 to {FOLDS}")
    parser.add_argument("--query", default="光")
    parser.add_argument("--key", default="月")
    parser.add_argument("--keep", action="store_true", help=f"put the tables in {DOCUMENT.name}")
    parser.add_argument("--json", metavar="F", help="write all figures as JSON")
    args = parser.parse_args(argv)
    if args.keep and args.train:
        raise UsageError(
            f"{DOCUMENT.name} is about the default settings: leave out --keep or --train"
        )
    if not 1 <= args.trainings <= FOLDS:
        raise UsageError(f"trainings must be 1 to {FOLDS}, not {args.trainings}")
    for name in ("query", "key"):
        if len(getattr(args, name)) != 1:
            raise UsageError(f"--{name} takes one character, not {getattr(args, name)!r}")
    if args.json is not None and (Path(args.json).is_dir() or not Path(args.json).parent.is_dir()):
        raise UsageError(f"cannot write {args.json!r}: name a file in a folder that exists")
    config, *_ = parse([f"--{setting}" for setting in args.train])
    documents, *_ = read_texts(config.data, config.extra_data)
    # An unknown character is refused now, not after a training.
    Vocabulary.of(documents).encode(args.query + args.key)
    judged, parts = [], {}
    for fold in range(args.trainings):
        out_dir = Path(args.out_dir) / f"fold{fold}"
        train(out_dir, fold, args.train)
        evidence, loss = judge(out_dir, args.query, args.key)
        judged.append(evidence)
        title = f"Tenth {fold}, seed {FIRST_SEED + fold}, held-out loss {loss:.3f}"
        parts[title] = evidence_dict(evidence)
        print(title, flush=True)
    pooled = f"All {args.trainings} pooled"
    parts = {pooled: evidence_dict(pool_evidence(judged)), **parts}
    tables = [f"### {title}\n\n```\n{format_evidence(part)}\n```" for title, part in parts.items()]
    if args.trainings > 1:
        title = "Between the trainings: lift 1, in each one's own head for the pair"
        tables.insert(1, f"### {title}\n\n```\n{between(judged)}\n```")
    publish("tables", "\n\n".join(tables), args.keep, DOCUMENT)
    if args.json:
        text = json.dumps(parts, ensure_ascii=False, indent=1)
        Path(args.json).write_text(text, encoding="utf-8", newline="\n")
    return 0
