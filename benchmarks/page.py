"""How long the page of attention maps takes in a real browser: to its first paint, to move a slider.

The made-up page has 64 characters, 16 heads and 20 snapshots; beside it stands the page of a run
where one is given. Each round opens the page from disk in a new headless Chromium context, network
off, and moves the slider once to every other snapshot (its weights still have to be unpacked), then
once more. A time ends when the page has painted the frame that shows the change: a move waits for the
screen's next frame, up to 17 ms at 60 frames a second, even where the page has nothing left to do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import publish, table
from command_line import Parser, UsageError
from data.vocabulary import BOUNDARY
from maps.capture import AttentionMap
from maps.page import page_texts, write_page

CHARACTERS, LAYERS, HEADS, SNAPSHOTS = 64, 4, 4, 20
VERSE = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")

# Both run in the page. A timer set while a frame is prepared fires after that frame is painted.
PAINTED = """
const painted = (then) => requestAnimationFrame(() => setTimeout(then));
addEventListener("DOMContentLoaded", () => painted(() => (window.firstPaint = performance.now())));
"""
# wait_for_function would poll by eval, which the page's Content-Security-Policy forbids.
FIRST_PAINT = """() => new Promise((done) => {
  const look = () => (window.firstPaint ? done(window.firstPaint) : setTimeout(look, 1));
  look();
})"""
MOVE = """(index) => new Promise((done) => {
  const slider = document.getElementById("step"), started = performance.now();
  slider.value = index;
  slider.dispatchEvent(new Event("input"));
  const script = performance.now() - started;
  requestAnimationFrame(() => setTimeout(() => done([script, performance.now() - started])));
})"""


def made_up_texts() -> list[dict[str, Any]]:
    """One text with maps at random: softmax of normal scores, sharper with every snapshot."""
    random = np.random.default_rng(0)
    tokens = [BOUNDARY, *(VERSE * 3)[:CHARACTERS]]
    T = len(tokens)
    scores = random.normal(size=(LAYERS, HEADS, T, T))
    maps = []
    for step in range(SNAPSHOTS):
        weights = np.tril(np.exp(step / 5 * scores))
        weights /= weights.sum(-1, keepdims=True)
        maps.append(AttentionMap(weights.astype(np.float32), tokens, 100 * step, 8 - step / 5))
    row = [(character, 0.1) for character in "月，明光花"]
    return page_texts({"0": maps}, {"0": [row] * T})


def find_browser(playwright: Any) -> str:
    """The path of a Chromium: $CHROMIUM, one on the PATH, or playwright's. Raises UsageError."""
    named = os.environ.get("CHROMIUM"), *map(shutil.which, BROWSERS)
    own = playwright.chromium.executable_path
    path = next(filter(None, named), None) or (own if Path(own).exists() else None)
    if path is None:
        raise UsageError("no Chromium found: run `python -m playwright install chromium`")
    return path


def measure(browser: Any, path: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each kind, one entry a page or a move."""
    times: dict[str, list[float]] = {
        name: []
        for name in ("first paint", "slider, first time", "slider, again", "… of it script")
    }
    for _ in range(rounds):
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.add_init_script(PAINTED)
        page.goto(path.as_uri())
        times["first paint"].append(page.evaluate(FIRST_PAINT))
        last = int(page.locator("#step").get_attribute("max"))
        # Step 0 was unpacked when the page opened: every weight stands beside the untrained one.
        for index in range(1, last):
            times["slider, first time"].append(page.evaluate(MOVE, index)[1])
        for index in range(1, last):
            script, whole = page.evaluate(MOVE, index)
            times["slider, again"].append(whole)
            times["… of it script"].append(script)
        context.close()
    return times


def main(argv: list[str]) -> None:
    """Print the table and keep it in RESULTS.md."""
    parser = Parser(prog="-m benchmarks page", description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="folder of a run, to measure its page too")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; keep nothing")
    args = parser.parse_args(argv)
    run = Path(args.run) / "attention.html" if args.run else None
    if run and not run.is_file():
        raise UsageError(f"no {run}: run `python view.py {args.run}` first")
    if find_spec("playwright") is None:
        raise UsageError("playwright not installed: run `pip install -r requirements-dev.txt`")
    from playwright.sync_api import sync_playwright

    rounds = 2 if args.quick else 10
    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        made_up = Path(folder) / "attention.html"
        write_page(made_up, {"texts": made_up_texts()})
        pages = {"made up": made_up} | ({"a run": run.resolve()} if run else {})
        arguments = ["--no-sandbox", "--disable-gpu"]
        path = find_browser(playwright)
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        version = browser.version
        for name, page in pages.items():
            size = f"{page.stat().st_size / 1e6:.2f}"
            for what, times in measure(browser, page, rounds).items():
                if times:
                    span = f"{min(times):.0f}–{max(times):.0f}"
                    rows.append((name, size, what, f"{median(times):.0f}", span, len(times)))
        browser.close()
    text = table(("page", "MB", "what", "median, ms", "range, ms", "times"), rows)
    text += (
        f"\n\nMade up: {CHARACTERS} characters, {LAYERS * HEADS} heads, {SNAPSHOTS} snapshots. "
        f"Chromium {version}, headless, window 1280 × 900."
    )
    publish("page", text, keep=not args.quick)
