"""Write poems with a trained model: on stdout, one a line.

python sample.py --prompt 床前明月光                   go on from a beginning
python sample.py --form 七律 --rhyme --num_samples 3    a form; even lines that rhyme
python sample.py --acrostic 春夏秋冬 --pretty           each line begins with the given character
"""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while importing: stop, no traceback

from command_line import Parser, UsageError, run, say
from data.corpus import corpus_of
from data.vocabulary import BOUNDARY, DataError, Vocabulary
from model.checkpoint import CheckpointError, load_model
from model.choose import Sampling
from model.generate import Engine
from model.gpt import GPT
from writing.forms import FormMask, RhymeMask, acrostic_form, both, find_form, full_width
from writing.novelty import NoveltyIndex
from writing.rhymes import Rhymes

BATCH = 64  # poems written at once
MOST = 1_000_000  # poems, or characters of one


def parse(argv: list[str]) -> tuple[Namespace, Sampling]:
    """The flags, checked, and how to choose characters."""
    parser = Parser(prog="sample.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out_dir", default="out/tang", help="folder of the training run")
    add("--prompt", default="", help="how each poem begins")
    add("--num_samples", type=int, default=5, help="how many poems")
    add("--max_new_tokens", type=int, default=80, help="most characters to add to the prompt")
    add("--temperature", type=float, default=0.8, help="0: always the likeliest character")
    add("--top_k", type=int, default=0, help="choose among the K likeliest, 0: among all")
    add("--top_p", type=float, default=1.0, help="… among the likeliest that make up this share")
    add("--seed", type=int, default=1337, help="another seed, other poems")
    add("--form", help="五绝, 七绝, 五律 or 七律 (wujue qijue wulü qilü)")
    add("--acrostic", default="", help="first characters of the 4 or 8 lines")
    add("--rhyme", action="store_true", help="make even lines rhyme as training poems do")
    add("--novelty", action="store_true", help="report what stands in training poems")
    add("--pretty", action="store_true", help="one line of verse a line")
    add("--maps", metavar="DIR", help="save each poem's attention map here")
    args = parser.parse_args(argv)
    for name in ("num_samples", "max_new_tokens"):
        if not 1 <= getattr(args, name) <= MOST:
            raise UsageError(f"{name} must be 1 to {MOST:,}, not {getattr(args, name)}")
    for name in ("out_dir", "form", "maps"):
        if getattr(args, name) == "":
            raise UsageError(f"--{name} is empty: give it a value or leave it out")
    if args.maps and (Path(args.maps) / "attention").exists():
        raise UsageError(f"{args.maps} already holds maps: name another folder")
    try:
        return args, Sampling(args.temperature, args.top_k, args.top_p)
    except ValueError as error:
        raise UsageError(str(error)) from None


def make_masks(args: Namespace, prompt: str, vocabulary: Vocabulary, poems: list[str]) -> list:
    """What --form, --acrostic and --rhyme, learned from `poems`, allow. Raises DataError or
    UsageError."""
    masks = []
    acrostic = full_width(args.acrostic, vocabulary)
    vocabulary.encode(acrostic)
    form = find_form(args.form) if args.form else None
    if acrostic:
        form = acrostic_form(acrostic, form)
    if form:
        masks.append(FormMask(form, vocabulary, acrostic))
        masks[0].check(prompt)
        needed = len(form.pattern) - len(prompt)
        if args.max_new_tokens < needed:
            raise UsageError(f"{form.name} needs {needed} new characters: raise --max_new_tokens")
    if args.rhyme:
        masks.append(RhymeMask(Rhymes(poems), vocabulary))
    return masks


class Printer:
    """Prints poems in their order as they grow: the first that has not ended, character by
    character, and those behind it when their turn comes."""

    def __init__(self, prompt: str, count: int, pretty: bool) -> None:
        self.texts = [prompt] * count
        self._pretty = pretty
        self._ended = [False] * count
        self._poem = self._shown = 0

    def add(self, i: int, character: str) -> None:
        """Let poem i go on; the boundary ends it."""
        self._ended[i] = character == BOUNDARY
        self.texts[i] += character.strip(BOUNDARY)

    def end(self, poems: Iterable[int]) -> None:
        """These poems get no more characters."""
        for i in poems:
            self._ended[i] = True

    def show(self) -> None:
        """Print what can be printed now."""
        while self._poem < len(self.texts):
            text = self.texts[self._poem]
            for at in range(self._shown, len(text)):
                line_ended = self._pretty and at and not text[at - 1].isalpha()
                sys.stdout.write(("\n" if line_ended else "") + text[at])
            self._shown = len(text)
            if not self._ended[self._poem]:
                break
            self._poem, self._shown = self._poem + 1, 0
            between = self._pretty and self._poem < len(self.texts)
            sys.stdout.write("\n\n" if between else "\n")
        sys.stdout.flush()


def report_novelty(poems: list[str], training: list[str]) -> None:
    """Say of each poem what it shares with training poems, and the means over all."""
    index = NoveltyIndex(training)
    found = [index.measure(poem) for poem in poems]
    for number, novelty in enumerate(found, 1):
        say(
            f"poem {number} shares at most {len(novelty.run)} characters in a row with a training "
            f"poem ({novelty.run} in {novelty.source}) and {novelty.share:.1%} of its "
            f"{index.RUN}-character runs with all of them"
        )
    longest = fmean(len(novelty.run) for novelty in found)
    say(f"mean: {longest:.2f} in a row, {fmean(novelty.share for novelty in found):.2%} of runs")


def save_maps(poems: list[str], folder: str, model: GPT, vocabulary: Vocabulary, state) -> None:
    """Save the attention map of each poem, of its beginning where it is longer than the block."""
    from maps.capture import capture, map_path, save_map  # takes a while to import

    longest = model.config.block_size - 1
    for number, poem in enumerate(poems):
        if not poem:
            say(f"poem {number + 1} is empty: no map")
            continue
        if len(poem) > longest:
            say(f"poem {number + 1} is longer than the block: its first {longest} characters")
        map = capture(model, vocabulary, poem[:longest], state["step"], state["val_loss"])
        save_map(map_path(folder, number, state["step"]), map)
    say(f"attention maps saved in {Path(folder) / 'attention'}")


def main(argv: list[str]) -> int:
    """Write poems; returns the exit code."""
    args, sampling = parse(argv)
    model, characters, state = load_model(Path(args.out_dir) / "ckpt.pt")
    vocabulary = Vocabulary(characters)
    prompt = full_width(args.prompt, vocabulary)
    if BOUNDARY in prompt:
        raise UsageError("the prompt has a line feed in it: give one line")
    ids = vocabulary.encode(BOUNDARY) + vocabulary.encode(prompt)
    # What can go wrong goes wrong before the first poem is written.
    corpus = corpus_of(state) if args.rhyme or args.novelty else None
    allowed = both(make_masks(args, prompt, vocabulary, corpus.train if corpus else []))
    if args.maps:
        Path(args.maps).mkdir(parents=True, exist_ok=True)
    engine = Engine(model)
    printer = Printer(prompt, args.num_samples, args.pretty)
    printer.show()
    for start in range(0, args.num_samples, BATCH):
        numbers = range(start, min(start + BATCH, args.num_samples))
        poems = [ids] * len(numbers)
        stream = engine.stream(
            poems, args.max_new_tokens, sampling, args.seed, numbers, stop=0, allowed=allowed
        )
        for new in stream:
            for i, character in zip(numbers, new, strict=True):
                if character is not None:
                    printer.add(i, vocabulary.characters[character])
            printer.show()
        printer.end(numbers)
        printer.show()
    if args.novelty:
        report_novelty(printer.texts, corpus.seen)
    if args.maps:
        save_maps(printer.texts, args.maps, model, vocabulary, state)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(main, CheckpointError, DataError)
