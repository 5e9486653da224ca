"""What the poems of a trained model are like, beside held-out real ones: figures, no adjectives.

- no form: poems that are not exactly 五绝, 七绝, 五律 or 七律
- repeated: characters that stood earlier in the same poem, of all, punctuation apart
- rhymed: poems whose even lines all end in one rhyme group, as learned from the training poems
- longest copy: mean length of a poem's longest run that also stands in a training poem
- copied fives: of all runs of five characters, those that stand in a training poem
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.common import ROOT, positive, publish, table
from command_line import Parser, UsageError
from data.corpus import corpus_of
from data.vocabulary import BOUNDARY, Vocabulary
from model.checkpoint import load_model
from model.choose import Sampling
from model.generate import Engine
from writing.forms import FORMS, FormMask, RhymeMask, both, form_of
from writing.novelty import NoveltyIndex
from writing.rhymes import Rhymes

HEADER = ("poems", "count", "no form", "repeated", "rhymed", "longest copy", "copied fives")


def measure(name: str, poems: list[str], rhymes: Rhymes, index: NoveltyIndex) -> tuple:
    """A row of the table."""
    bare = ["".join(filter(str.isalpha, poem)) for poem in poems]
    repeated = sum(len(text) - len(set(text)) for text in bare) / max(sum(map(len, bare)), 1)
    found = [index.measure(poem) for poem in poems]
    return (
        name,
        len(poems),
        f"{fmean(form_of(poem) is None for poem in poems):.1%}",
        f"{repeated:.1%}",
        f"{fmean(map(rhymes.rhymed, poems)):.1%}",
        f"{fmean(len(novelty.run) for novelty in found):.2f}",
        f"{fmean(novelty.share for novelty in found):.2%}",
    )


def main(argv: list[str]) -> None:
    """Write poems with each setting, print the table and keep it in RESULTS.md."""
    parser = Parser(prog="-m benchmarks quality", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 poems; keep nothing")
    parser.add_argument("--out_dir", default=str(ROOT / "out" / "tang"), help="the run to judge")
    parser.add_argument("--num_samples", type=positive, default=500, help="poems of each setting")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args(argv)
    count = 50 if args.quick else args.num_samples
    try:
        sampling = Sampling(args.temperature)
    except ValueError as error:
        raise UsageError(str(error)) from None

    model, characters, state = load_model(Path(args.out_dir) / "ckpt.pt")
    vocabulary, corpus, engine = Vocabulary(characters), corpus_of(state), Engine(model)
    rhymes, index = Rhymes(corpus.train), NoveltyIndex(corpus.seen)
    rhyme = RhymeMask(rhymes, vocabulary)
    settings = [("free", []), ("--rhyme", [rhyme])]
    settings += [(f"--form {name}", [FormMask(FORMS[name], vocabulary)]) for name in FORMS]
    settings += [(f"--form {n} --rhyme", [FormMask(FORMS[n], vocabulary), rhyme]) for n in FORMS]
    rows = []
    for name, masks in settings:
        poems = []
        for start in range(0, count, 64):
            numbers = range(start, min(start + 64, count))
            found = engine.generate(
                [[0]] * len(numbers),
                80,
                sampling,
                args.seed,
                numbers,
                stop=0,
                allowed=both(masks),
            )
            poems += [vocabulary.decode(ids).removesuffix(BOUNDARY) for ids in found]
        rows.append(measure(name, poems, rhymes, index))
    rows.append(measure("held-out real poems", corpus.val, rhymes, index))
    text = (
        f"Step {state['step']}, held-out loss {state['val_loss']:.3f}; temperature "
        f"{args.temperature}, seed {args.seed}.\n\n{table(HEADER, rows)}\n{__doc__.partition(chr(10))[2]}"
    )
    publish("quality", text.rstrip(), keep=not args.quick)
