"""Look at what a trained model attends to: a page, a picture, the terminal, the evidence.

python view.py                                   write the page of out/tang anew
python view.py --text 床前明月光 --query 光        what 光 looks at in each head, in the terminal
python view.py --png map.png --layer 1 --head 2  one head as a picture; without them all heads
python view.py --query 光 --key 月 --evidence    does 光 really attend to 月, on unseen poems?
python view.py --atlas                           what each head does
python view.py out/poems                         maps that `sample.py --maps out/poems` saved
"""

from __future__ import annotations

import signal
import webbrowser
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while importing: stop, no traceback

from command_line import Parser, UsageError, run, say
from data.corpus import Corpus, corpus_of
from data.vocabulary import DataError, Vocabulary
from maps.atlas import atlas_dict, format_atlas, head_atlas
from maps.capture import AttentionMap, MapError, capture
from maps.look import check_head, draw_head, look_at
from maps.lookup import format_partners, looks_for, partner_dicts
from maps.picture import draw_loss, draw_maps
from maps.report import evidence_dict, format_evidence, gather_evidence
from maps.run_page import (
    ATLAS,
    EVIDENCE,
    keep,
    read_metrics,
    run_maps,
    write_json,
    write_maps_page,
    write_run_page,
)
from model.checkpoint import CheckpointError, load_model, untrained_model
from model.gpt import GPT
from writing.forms import full_width


def parse(argv: list[str]) -> Namespace:
    """The flags, checked for what needs what."""
    parser = Parser(prog="view.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "out_dir",
        nargs="?",
        default="out/tang",
        metavar="OUT_DIR",
        help="folder of the run, or of maps",
    )
    add("--text", action="append", default=[], help="a text to look at (repeatable)")
    add("--query", help="the character that looks")
    add("--key", help="the character that is looked at")
    add("--layer", type=int, help="a layer, from 1")
    add("--head", type=int, help="a head, from 1")
    add("--html", metavar="F", help="write the page to this file")
    add("--open", action="store_true", help="open the page in the browser")
    add("--png", metavar="F", help="write the map as a picture")
    add("--png-loss", metavar="F", help="write the losses against steps as a picture")
    add(
        "--evidence",
        action="store_true",
        help="with --key: measure on unseen poems whether query attends to it; without: whom query "
        "looks for, in all poems",
    )
    add("--atlas", action="store_true", help="say what each head does")
    add("--json", metavar="F", help="write the evidence or the atlas as JSON")
    args = parser.parse_args(argv)
    if (args.layer is None) != (args.head is None):
        raise UsageError("--layer and --head go together: give both or neither")
    if args.evidence and not args.query:
        raise UsageError("--evidence needs --query, for example --query 光 --key 月")
    if args.key and not args.evidence:
        raise UsageError("--key goes with --evidence: add it")
    if args.json and not (args.evidence or args.atlas):
        raise UsageError("--json goes with --evidence or --atlas: add one")
    if args.png and len(args.text) > 1:
        raise UsageError("a picture shows one text: give --text once")
    for name in ("out_dir", "html", "png", "png_loss", "json"):
        if getattr(args, name) == "":
            raise UsageError(f"{name} is empty: name a file or folder, or leave it out")
    if any("\n" in text for text in args.text):
        raise UsageError("--text takes one line: give --text again for another text")
    for name in ("query", "key"):
        if getattr(args, name) is not None and len(getattr(args, name)) != 1:
            raise UsageError(f"--{name} takes one character, not {getattr(args, name)!r}")
    return args


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds."""

    model: GPT
    vocabulary: Vocabulary
    state: dict[str, Any]


def open_run(args: Namespace) -> Trained | None:
    """The run of the folder; None where it has maps but no checkpoint. What the flags say is checked
    against it. Raises UsageError, CheckpointError, MapError or DataError."""
    out_dir = Path(args.out_dir)
    if not out_dir.is_dir():
        raise UsageError(f"no folder {out_dir}: train first with `python train.py`")
    checkpoint = out_dir / "ckpt.pt"
    if not checkpoint.exists() and (out_dir / "attention").is_dir():
        if args.text or args.evidence or args.atlas:
            needing = "--text, --evidence and --atlas need the folder of a run"
            raise UsageError(f"{out_dir} holds maps alone: {needing}")
        return None
    model, characters, state = load_model(checkpoint)
    vocabulary = Vocabulary(characters)
    args.text = [full_width(text, vocabulary) for text in args.text]
    for character in (args.query, args.key):
        vocabulary.encode(character or "")
    check_head(model.config.n_layer, model.config.n_head, args.layer, args.head)
    return Trained(model, vocabulary, state)


def maps_to_see(args: Namespace, trained: Trained | None) -> list[AttentionMap]:
    """The maps of all --text; without, the last map of the folder's first text that has the query."""
    if args.text:
        step, val_loss = trained.state["step"], trained.state["val_loss"]
        return [
            capture(trained.model, trained.vocabulary, text, step, val_loss) for text in args.text
        ]
    last = [maps[-1] for maps in run_maps(args.out_dir).values()]
    return [next((map for map in last if args.query in map.tokens), last[0])]


def show_in_terminal(args: Namespace, maps: Iterable[AttentionMap]) -> None:
    """Print one head of each map, or what the query looks at, or both."""
    parts = []
    for map in maps:
        if args.layer is not None:
            parts.append(draw_head(map, args.layer, args.head))
        if args.query:
            parts.append(look_at(map, args.query))
    print("\n\n".join(parts))


def show_evidence(args: Namespace, trained: Trained, corpus: Corpus) -> Any:
    """Print what the heads say about a pair, or without a key whom the query looks for."""
    model, vocabulary, query = trained.model, trained.vocabulary, args.query
    partners = partner_dicts(looks_for(model, vocabulary, corpus.documents, query))
    if not args.key:
        print(format_partners(query, partners))
        return {"query": query, "partners": partners}
    untrained = untrained_model(trained.state)
    poems = corpus.train, corpus.val
    evidence = evidence_dict(
        gather_evidence(model, untrained, vocabulary, *poems, query, args.key, partners)
    )
    print(format_evidence(evidence))
    keep(args.out_dir, EVIDENCE, trained.state, evidence)
    return evidence


def show_atlas(args: Namespace, trained: Trained, corpus: Corpus) -> Any:
    """Print what each head does on unseen poems."""
    heads = head_atlas(trained.model, trained.vocabulary, corpus.train, corpus.val)
    print(format_atlas(heads))
    atlas = atlas_dict(heads)
    keep(args.out_dir, ATLAS, trained.state, atlas)
    return atlas


def measure(args: Namespace, trained: Trained) -> None:
    """Evidence and atlas, as asked for."""
    corpus, found = corpus_of(trained.state), {}
    if args.evidence:
        found["evidence"] = show_evidence(args, trained, corpus)
    if args.atlas:
        found["atlas"] = show_atlas(args, trained, corpus)
    if args.json:
        write_json(args.json, found)
        say(f"wrote {args.json}")


def make_page(args: Namespace, trained: Trained | None) -> None:
    """Write the page and open it where asked."""
    page = Path(args.html or Path(args.out_dir) / "attention.html")
    if trained is None:
        size = write_maps_page(args.out_dir, page)
    else:
        read_by = trained.model, trained.vocabulary, trained.state
        size = write_run_page(args.out_dir, page, *read_by, args.text)
    say(f"wrote {page}, {size / 1e6:.2f} MB")
    if args.open and not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser found: open {page} yourself")


def main(argv: list[str]) -> int:
    """Show what was asked for; without a wish, write the page."""
    args = parse(argv)
    trained = open_run(args)
    if args.evidence or args.atlas:
        measure(args, trained)
    if args.png:
        [map] = maps_to_see(args, trained)
        draw_maps(map, args.png, args.layer, args.head, args.query)
        say(f"wrote {args.png}")
    if args.png_loss:
        baselines = trained.state.get("baselines", []) if trained else []
        losses = {baseline["en"]: baseline["loss"] for baseline in baselines}
        draw_loss(read_metrics(args.out_dir), args.png_loss, losses)
        say(f"wrote {args.png_loss}")
    asked_elsewhere = args.evidence or args.atlas or args.png or args.png_loss
    in_terminal = (args.query or args.layer is not None) and not asked_elsewhere
    if in_terminal:
        show_in_terminal(args, maps_to_see(args, trained))
    # The page shows the last evidence and atlas, so new ones mean a new page.
    new = (args.evidence and args.key) or args.atlas
    if args.html or args.open or new or not (asked_elsewhere or in_terminal):
        make_page(args, trained)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(main, CheckpointError, DataError, MapError)
