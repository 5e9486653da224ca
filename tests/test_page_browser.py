"""The page in a real Chromium, from disk, with the network off: it shows the numbers it was given."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from benchmarks.page import find_browser
from command_line import UsageError
from maps.page import page_texts, write_page
from tests.test_page import (
    PROBES,
    STEPS,
    made_up_cuts,
    made_up_evidence,
    made_up_maps,
    made_up_page,
    made_up_predictions,
)

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
PATIENCE = 60_000  # ms; a busy machine is no fault of the page
expect.set_options(timeout=PATIENCE)

pytestmark = pytest.mark.browser

MAPS = made_up_maps(PROBES[0])
FINAL = MAPS[-1].weights
LIGHT, MOON, FROST = 5, 4, 11  # positions of 光, 月, 霜 in the first text
MEANING = (1, 1)  # the head chosen in the made-up evidence, counted from 0


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            path = find_browser(playwright)
        except UsageError as error:
            pytest.skip(str(error))
        arguments = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=3 * PATIENCE
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages written once: the whole made-up run, and others that tests add."""
    folder = tmp_path_factory.mktemp("page")
    write_page(folder / "page.html", made_up_page())
    return folder


@pytest.fixture
def open_page(browser, files):
    """Opens a page and afterwards looks for anything the browser complained about."""
    contexts, complaints = [], []

    def opened(data: dict | None = None, **options):
        path = files / "page.html"
        if data is not None:
            path = files / f"page{len(list(files.iterdir()))}.html"
            write_page(path, data)
        settings = {"viewport": {"width": 1400, "height": 900}, "locale": "zh-CN"} | options
        context = browser.new_context(offline=True, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(path.as_uri(), timeout=PATIENCE)
        return page

    addresses: list[str] = []
    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(address.startswith(("file:", "data:")) for address in addresses)


def character(page, position: int):
    return page.locator(f'.character[data-position="{position}"]')


def shown(page) -> list[str]:
    """The numbers on the strip, by position."""
    return page.locator(".character .weight").all_text_contents()


def expected(rows: np.ndarray, *queries: int) -> list[str]:
    """What the strip must show for these rows of one map, the sum for several."""
    last = max(queries)
    # As in the file: thousandths, then added.
    total = sum(np.rint(rows[query].astype(np.float64) * 1000) for query in queries) / 1000
    return [f"{value:.3f}" if key <= last else "" for key, value in enumerate(total)]


def move_slider(page, index: int) -> None:
    page.locator("#step").fill(str(index))


def test_opens_with_the_asked_pair_and_the_chosen_head(open_page):
    page = open_page()
    expect(page.locator("#map-title")).to_contain_text("第 2 层第 2 头")
    expect(page.locator("#map-title")).to_contain_text("意思")
    expect(character(page, LIGHT)).to_have_attribute("aria-selected", "true")
    assert shown(page) == expected(FINAL[MEANING], LIGHT)
    expect(page.locator("#step-label")).to_contain_text("第 1500 步")
    expect(page.locator("#step-label")).to_contain_text(f"{MAPS[-1].val_loss:.3f}")
    expect(page.locator(".axis-title").first).to_have_text(re.compile(r"被看的字 \(key\)"))
    expect(page.locator(".axis-title").nth(1)).to_have_text(re.compile(r"正在读的字 \(query\)"))


def test_hover_previews_click_locks_and_escape_unlocks(open_page):
    page = open_page()
    page.keyboard.press("Escape")
    assert set(shown(page)) == {""}
    character(page, MOON).hover()
    assert shown(page) == expected(FINAL[MEANING], MOON)
    expect(page.locator("#question")).to_contain_text("预览")
    character(page, LIGHT).click()
    character(page, 2).hover()
    assert shown(page) == expected(FINAL[MEANING], LIGHT)  # locked: hovering changes nothing
    tip = page.locator("#tooltip")
    expect(tip).to_contain_text(f"{FINAL[MEANING][LIGHT, 2]:.3f}")
    expect(tip).to_contain_text(f"{1 / (LIGHT + 1):.3f}")
    expect(tip).to_contain_text(f"{MAPS[0].weights[MEANING][LIGHT, 2]:.3f}")
    character(page, LIGHT).click()
    page.mouse.move(5, 5)
    assert set(shown(page)) == {""}
    character(page, LIGHT).click()
    page.keyboard.press("Escape")
    page.mouse.move(5, 5)
    assert set(shown(page)) == {""}


def test_several_locked_rows_add_up(open_page):
    page = open_page()
    character(page, FROST).click(modifiers=["Shift"])
    assert shown(page) == expected(FINAL[MEANING], LIGHT, FROST)
    page.locator("#several").check()
    character(page, MOON).click()
    assert shown(page) == expected(FINAL[MEANING], LIGHT, FROST, MOON)
    character(page, FROST).click()
    assert shown(page) == expected(FINAL[MEANING], LIGHT, MOON)
    assert page.locator("#map-rows .mark-row").count() == 2


def test_long_press_adds_and_a_tap_locks(open_page):
    page = open_page(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    character(page, MOON).tap()
    assert shown(page) == expected(FINAL[MEANING], MOON)
    character(page, 3).dispatch_event("pointerdown", {"pointerType": "touch", "bubbles": True})
    expect(character(page, 3)).to_have_attribute("aria-selected", "true")
    character(page, 3).dispatch_event("pointerup", {"pointerType": "touch", "bubbles": True})
    character(page, 3).dispatch_event("click", {"bubbles": True})  # the press's own click
    assert shown(page) == expected(FINAL[MEANING], MOON, 3)


def test_keys_move_the_query_and_choose_the_head(open_page):
    page = open_page()
    page.keyboard.press("ArrowRight")
    assert shown(page) == expected(FINAL[MEANING], LIGHT + 1)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("1")
    assert shown(page) == expected(FINAL[1, 0], MOON)
    page.keyboard.press("Shift+Digit3")
    assert shown(page) == expected(FINAL[2, 0], MOON)
    page.keyboard.press("9")  # there is no such head
    assert shown(page) == expected(FINAL[2, 0], MOON)
    character(page, MOON).focus()
    page.keyboard.press("ArrowDown")  # 月 of the first line -> the fourth character of the second
    assert shown(page) == expected(FINAL[2, 0], 16)


def test_head_choice_in_the_grid_and_means(open_page):
    page = open_page()
    page.locator('.head[data-layer="1"][data-head="3"]').click()
    assert shown(page) == expected(FINAL[0, 2], LIGHT)
    expect(page.locator("#map-title")).to_have_text("第 1 层第 3 头标点")
    scores = made_up_page()["atlas"][0][2]["scores"]
    for score in scores.values():
        expect(page.locator("#map-scores")).to_contain_text(f" {score:.1f}")
    mean = page.locator('[data-layer="1"][data-head="mean"]')
    for choose, plane in (
        (mean.click, FINAL[0].mean(0)),
        (page.locator("#mean-all").click, FINAL.mean((0, 1))),
        (lambda: page.keyboard.press("4"), FINAL[0, 3]),
        (lambda: page.keyboard.press("0"), FINAL[0].mean(0)),
    ):
        choose()
        numbers = [float(text) for text in shown(page)[: LIGHT + 1]]
        assert np.abs(numbers - plane[LIGHT, : LIGHT + 1]).max() <= 0.0011


def test_every_weight_stands_beside_the_uniform_share_and_the_untrained_weight(open_page):
    page = open_page()
    page.locator("#ledger-more").click() if page.locator("#ledger-more").is_visible() else None
    rows = page.locator("#ledger tr").all()
    assert len(rows) == LIGHT + 1
    row = FINAL[MEANING][LIGHT]
    order = np.argsort(-np.rint(row[: LIGHT + 1] * 1000), kind="stable")
    for key, line in zip(order, rows, strict=True):
        cells = line.locator("td.number").all_text_contents()
        untrained = MAPS[0].weights[MEANING][LIGHT, key]
        assert cells == [f"{row[key]:.3f}", f"{1 / (LIGHT + 1):.3f}", f"{untrained:.3f}"]


def test_slider_and_play_go_through_the_training(open_page):
    page = open_page()
    for index in (0, 4):
        move_slider(page, index)
        assert shown(page) == expected(MAPS[index].weights[MEANING], LIGHT)
        expect(page.locator("#step-label")).to_contain_text(f"第 {STEPS[index]} 步")
        expect(page.locator("#step-label")).to_contain_text(f"{MAPS[index].val_loss:.3f}")
    expect(page.locator("#prediction-note")).to_contain_text("训练结束时的模型")
    move_slider(page, len(STEPS) - 2)
    page.locator("#play").click()
    expect(page.locator("#step-label")).to_contain_text("第 1500 步")
    expect(page.locator("#play")).to_have_attribute("aria-label", "播放训练过程")  # it has stopped
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")  # from the end it starts again
    expect(page.locator("#step-label")).to_contain_text("第 0 步")
    expect(page.locator("#step-label")).to_contain_text(f"第 {STEPS[1]} 步")
    page.locator("#play").click()
    now = page.locator("#step").input_value()
    page.wait_for_timeout(900)
    assert page.locator("#step").input_value() == now
    page.locator('.dot[data-snapshot="6"]').click()
    expect(page.locator("#step-label")).to_contain_text(f"第 {STEPS[6]} 步")


def test_hide_first_hides_it_and_changes_no_other_number(open_page):
    page = open_page()
    expect(page.locator("#sink")).to_be_hidden()
    page.locator("#hide-first").check()
    expect(page.locator("#sink")).to_contain_text("attention sink")
    assert shown(page) == ["", *expected(FINAL[MEANING], LIGHT)[1:]]
    assert page.locator("#ledger tr").count() == LIGHT
    corner = (
        "document.getElementById('map-canvas').getContext('2d').getImageData(3, 3, 1, 1).data[3]"
    )
    assert page.evaluate(corner) == 0
    small = (
        "document.querySelector('.head canvas').getContext('2d').getImageData(0, 9, 1, 1).data[3]"
    )
    assert page.evaluate(small) == 0
    page.locator("#hide-first").uncheck()
    assert shown(page) == expected(FINAL[MEANING], LIGHT)
    assert page.evaluate(corner) == page.evaluate(small) == 255


def test_map_shows_the_cell_under_the_pointer(open_page):
    page = open_page()
    size = len(MAPS[0].tokens)
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    cell = box["width"] / size

    def point(query: int, key: int) -> None:
        page.mouse.move(box["x"] + (key + 0.5) * cell, box["y"] + (query + 0.5) * cell)

    tip = page.locator("#tooltip")
    for query, key in ((LIGHT, MOON), (17, 16), (size - 1, 0), (0, 0)):
        point(query, key)
        expect(tip).to_contain_text(f"{FINAL[MEANING][query, key]:.3f}")
        expect(tip).to_contain_text(f"{1 / (query + 1):.3f}")
        expect(tip).to_contain_text(f"{MAPS[0].weights[MEANING][query, key]:.3f}")
        expect(page.locator("#map-queries .pointed")).to_have_attribute("data-position", str(query))
        expect(page.locator("#map-keys .pointed")).to_have_attribute("data-position", str(key))
    point(LIGHT, MOON)
    expect(tip).to_be_visible()
    page.mouse.wheel(0, 40)  # the map slides away under the pointer
    expect(tip).to_be_hidden()
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map").bounding_box()
    point(3, 9)  # not read yet
    expect(tip).to_be_hidden()
    expect(page.locator("#map-queries .asking")).to_have_attribute("data-position", str(LIGHT))
    labels = page.locator("#map-keys .axis-label").all_text_contents()
    assert labels[0] == "0始" and labels[4] == "4月" and labels[17] == "17月"


def test_colours_of_the_map_follow_one_scale(open_page):
    """Equal weights have equal colours in any head, greater weights darker ones."""
    page = open_page()
    read = """(size) => {
      const canvas = document.getElementById("map-canvas"), cell = canvas.width / size;
      const pixel = (query, key) => canvas.getContext("2d")
        .getImageData((key + 0.5) * cell, (query + 0.5) * cell, 1, 1).data;
      const cells = [];
      for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) cells.push([...pixel(i, j)]);
      return cells;
    }"""
    size = len(MAPS[0].tokens)
    brightness: dict[int, set] = {}
    for layer, head in ((0, 0), (1, 1), (2, 0)):
        page.locator(f'.head[data-layer="{layer + 1}"][data-head="{head + 1}"]').click()
        pixels = np.array(page.evaluate(read, size)).reshape(size, size, 4)
        visible = np.tri(size, dtype=bool)
        assert (pixels[..., 3] == np.where(visible, 255, 0)).all()
        thousandths = np.rint(FINAL[layer, head] * 1000).astype(int)
        for value, rgb in zip(thousandths[visible], pixels[visible], strict=True):
            brightness.setdefault(value, set()).add(tuple(rgb[:3]))
    assert all(len(colours) == 1 for colours in brightness.values())
    sums = [sum(next(iter(brightness[value]))) for value in sorted(brightness)]
    assert all(later <= earlier for earlier, later in zip(sums, sums[1:], strict=False))
    assert sums[0] - sums[-1] > 300


def test_prediction_at_the_locked_character(open_page):
    page = open_page()
    predictions = made_up_predictions(PROBES[0])
    guesses = page.locator("#guesses .guess")
    assert guesses.count() == 5
    for line, (likely, probability) in zip(guesses.all(), predictions[LIGHT], strict=True):
        expect(line.locator(".zi")).to_have_text(likely)
        expect(line.locator(".number")).to_have_text(f"{probability * 100:.1f}%")
    expect(page.locator("#prediction-note")).to_contain_text("是用来猜")
    expect(page.locator("#prediction-note")).to_contain_text("，6")  # what follows 光
    character(page, len(PROBES[0])).click()  # the last 。: what follows is the end
    expect(page.locator("#prediction-note")).to_contain_text("没有下一个字")


def test_cutting_an_edge(open_page):
    page = open_page()
    cuts = made_up_cuts(MAPS, made_up_predictions(PROBES[0]))

    def delta(layer, head):
        return next(
            cut
            for cut in cuts
            if (cut["layer"], cut["head"], cut["query"], cut["key"]) == (layer, head, LIGHT, MOON)
        )["delta"]

    size = len(MAPS[0].tokens)
    cell = page.locator("#map").bounding_box()["width"] / size

    def click(query: int, key: int) -> None:
        place = {"x": (key + 0.5) * cell, "y": (query + 0.5) * cell}
        page.locator("#map").click(position=place)

    click(LIGHT, MOON)
    panel = page.locator("#cut")
    expect(panel).to_contain_text("剪断 光5 → 月4")
    expect(panel).to_contain_text(f"{math.exp(round(delta(2, 2), 3)) * 100:.1f}%")
    rows = panel.locator(".scopes tbody .number").all_text_contents()
    scopes = (delta(2, 2), delta(2, None), delta(None, None))
    assert [row.replace("−", "-") for row in rows] == [f"{value:.3f}" for value in scopes]
    expect(character(page, MOON)).to_have_class(re.compile("cut-key"))
    click(LIGHT, 2)  # too little weight to have been computed
    expect(panel).to_contain_text("没有预先算过")
    page.keyboard.press("Escape")
    expect(panel).to_contain_text("点图上的一格")
    known = [cut["delta"] for cut in cuts if (cut["layer"], cut["head"]) == (2, 2)]
    largest = sorted(known, key=abs, reverse=True)[:5]
    assert min(largest) < 0 < max(largest)  # helpful and harmful ones alike
    shown = panel.locator(".edge .number").all_text_contents()
    assert [abs(float(n.replace("−", "-"))) for n in shown] == pytest.approx(
        [abs(n) for n in largest], abs=6e-4
    )
    panel.locator(".edge").first.click()
    expect(panel).to_contain_text("剪断前")


def test_map_by_keyboard(open_page):
    page = open_page()
    page.locator("#map").focus()
    page.keyboard.press("ArrowLeft")  # the cursor appears at the query
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tooltip")).to_contain_text(f"{FINAL[MEANING][LIGHT, MOON]:.3f}")
    page.keyboard.press("Enter")
    expect(page.locator("#cut")).to_contain_text("剪断 光5 → 月4")


def test_the_keyboards_cell_stays_in_sight(open_page):
    page = open_page(viewport={"width": 1366, "height": 480})
    page.locator("#map").focus()
    for key in ["ArrowUp", *["ArrowDown"] * 30, *["ArrowUp"] * 30]:
        page.keyboard.press(key)
        cell, bar = page.locator("#map-cell").bounding_box(), page.locator(".bar").bounding_box()
        assert bar["y"] + bar["height"] <= cell["y"] <= 480 - cell["height"]


@pytest.mark.parametrize("width", [390, 1280])
def test_names_in_the_loss_chart_do_not_lie_on_each_other(open_page, width):
    data = made_up_page()
    end = 6.55  # a short training ends where the counting models are
    data["loss"] = [[s, end + 0.1 + 2 * 0.9**s, end + 2 * 0.9**s] for s in range(41)]
    lines = ((8.75, "乱猜"), (6.50, "只数单字"), (6.30, "只数相邻两字"))
    data["run"]["baselines"] = [{"zh": zh, "en": zh, "loss": loss} for loss, zh in lines]
    page = open_page(data, viewport={"width": width, "height": 800})
    labels = page.locator("#chart text.baseline-label, #chart text.curve-label")
    heights = sorted(float(label.get_attribute("y")) for label in labels.all())
    assert len(heights) == 5
    assert all(lower - upper > 13 for upper, lower in itertools.pairwise(heights))
    axis = page.locator("#chart text.tick").last.get_attribute("y")
    assert heights[0] > 0 and heights[-1] < float(axis) - 13


def test_texts_in_a_list(open_page):
    page = open_page()
    expect(page.locator(".text")).to_have_text(["床前明月光", "白日依山尽", "凤凰台上凤凰游"])
    move_slider(page, 3)
    page.locator('.text[data-text="2"]').click()
    expect(page.locator(".character")).to_have_count(len(PROBES[2]) + 1)
    expect(page.locator(".verse")).to_have_count(1 + 4)  # the start, four verse lines
    character(page, 20).click()
    other = made_up_maps(PROBES[2])
    assert shown(page) == expected(other[3].weights[MEANING], 20)  # the same step


def test_texts_that_begin_alike_are_told_apart(open_page):
    lines = ("床前明月光，疑是地上霜。", "床前明月光，低头思故乡。", "白日依山尽，黄河入海流。")
    maps = {str(number): made_up_maps(line, 1, 2, (0, 9)) for number, line in enumerate(lines)}
    page = open_page({"texts": page_texts(maps)})
    expect(page.locator(".text")).to_have_text(["床前明月光1", "床前明月光2", "白日依山尽"])


def test_baselines_that_the_training_did_not_reach_lie_within_the_chart(open_page):
    data = made_up_page(loss=[[0, None, 8.7], [40, 8.0, 7.9]])
    page = open_page(data)
    chart = page.locator("#chart svg").bounding_box()
    lines = page.locator("#chart .baseline").all()
    assert len(lines) == len(data["run"]["baselines"])
    axis = page.locator("#chart-mark").bounding_box()
    for line in lines:
        y = line.bounding_box()["y"]
        assert axis["y"] - 1 <= y <= axis["y"] + axis["height"] + 1
    assert axis["y"] + axis["height"] < chart["y"] + chart["height"]


def test_language_follows_the_browser_and_the_switch(open_page):
    page = open_page(locale="en-GB")
    assert page.locator("html").get_attribute("lang") == "en"
    expect(page.locator("h1")).to_contain_text("What a character looks at", use_inner_text=True)
    expect(page.locator("#map-title")).to_contain_text("Layer 2, head 2")
    expect(page.locator("#map-title")).to_contain_text("meaning")
    page.locator("#language").click()
    expect(page.locator("#map-title")).to_contain_text("第 2 层第 2 头")
    visible = page.locator("main").inner_text()
    assert "权重不是解释" in visible and "a weight is not" not in visible
    assert shown(page) == expected(FINAL[MEANING], LIGHT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_switch(open_page, scheme):
    page = open_page(color_scheme=scheme)
    background = "getComputedStyle(document.documentElement).backgroundColor"

    def is_dark() -> bool:
        return sum(map(int, re.findall(r"\d+", page.evaluate(background))[:3])) < 200

    assert is_dark() == (scheme == "dark")
    page.locator("#theme").click()
    assert is_dark() == (scheme == "light")


def test_text_is_never_markup(open_page):
    text = "</script><b>&\"'<img src=x onerror=alert(1)>🌕{{data}}\u202e\ud800\x07"
    maps = made_up_maps(text, 1, 2, (0, 5))
    atlas = [[{"key": "x", "name_zh": "<i>名</i>", "name_en": "<i>", "score": 2.0}] * 2]
    data = {
        "title": "</title><b>",
        "texts": page_texts({"0": maps}, {"0": made_up_predictions(text)}),
        "atlas": atlas,
        "run": {"config": {"data": "<b>poems</b>"}},
    }
    page = open_page(data)
    assert page.locator(".character .glyph").all_text_contents() == [
        "始",
        *re.sub("[ \u202e\ud800\x07]", "␣", text),
    ]
    expect(page.locator(".head-name").first).to_have_text("<i>名</i>")
    assert page.locator("#strip b, #strip img, .head i:not(.thumb-rows i), footer b").count() == 0
    assert page.title() == "</title><b>"


def test_a_page_with_one_map_and_nothing_else(open_page):
    maps = made_up_maps("明月", 1, 1, (700,))
    maps[0] = type(maps[0])(maps[0].weights, maps[0].tokens, 700, math.nan)
    page = open_page({"texts": page_texts({"0": maps})})
    expect(page.locator("#map-title")).to_have_text("第 1 层第 1 头")  # of one head no mean
    expect(page.locator(".pill:visible")).to_have_count(0)
    character(page, 2).click()
    character(page, 2).click() if shown(page)[0] == "" else None
    assert shown(page) == expected(maps[0].weights[0, 0], 2)
    expect(page.locator("#play")).to_be_hidden()
    for absent in (
        "#evidence",
        "#training",
        "#prediction",
        "th.of-untrained",
        'a[href="#evidence"]',
    ):
        for each in page.locator(absent).all():
            expect(each).to_be_hidden()
    assert "—" not in page.locator("main").inner_text()
    assert "未训练" not in page.locator("main").inner_text()
    page.locator("#map").click(position={"x": 3, "y": 3})  # a cell's numbers, without any cut
    expect(page.locator("#cut")).to_contain_text("1.000")
    expect(page.locator("#cut")).not_to_contain_text("剪断")


def test_a_run_without_evidence_says_how_to_get_it(open_page):
    data = made_up_page()
    del data["evidence"]
    page = open_page(data)
    expect(page.locator("#evidence-body")).to_contain_text("--evidence")
    expect(page.locator('a[href="#evidence"]:visible')).to_have_count(1)


def test_evidence_shows_its_figures(open_page):
    page = open_page()
    rows = page.locator("#evidence-body > .table-scroll tbody tr")
    expect(rows).to_have_count(8)
    for figure in (
        "光 → 月",
        "31",
        "14%, 3%",
        "2·2",
        "0.214",
        "4.62 [3.11, 6.34]",
        "3.87 [2.71, 5.18]",
        "47%",
    ):
        expect(rows.first).to_contain_text(figure)
    expect(rows.nth(6)).to_contain_text("次数太少")
    for figure in ("27 +2", "2.80 [1.70, >100]"):  # left out; a limit without an end
        expect(rows.nth(2)).to_contain_text(figure)
    page.locator(".heads > summary").click()
    expect(page.locator(".heads tbody tr")).to_have_count(12)
    expect(page.locator(".heads tbody tr").last).to_be_visible()
    expect(page.locator(".cuts")).to_contain_text("−0.124 [−0.193, −0.055]")
    assert page.locator(".partners tbody tr:visible").count() == 10  # the best ones
    page.locator(".more-partners > summary").click()
    assert page.locator(".partners tbody tr:visible").count() == 11


@pytest.mark.parametrize("width", [1280, 390])
def test_the_claim_is_never_folded_away(open_page, width):
    page = open_page(viewport={"width": width, "height": 800})
    rows = page.locator("#evidence-body > .table-scroll tbody tr")
    for row, figures in ((0, ("31", "4.62 [3.11, 6.34]")), (4, ("28", "0.71 [0.44, 1.05]"))):
        for figure in figures:
            expect(rows.nth(row).get_by_text(figure, exact=True)).to_be_visible()
    cuts = page.locator(".cuts tbody")
    assert cuts.is_visible() == (width == 1280)
    page.locator(".cuts > summary").click()
    assert cuts.is_visible() == (width != 1280)
    page.locator("#language").click()  # drawn anew, it stays as the reader left it
    assert cuts.is_visible() == (width != 1280)


def test_no_number_is_minus_zero(open_page):
    evidence = made_up_evidence()
    evidence["cuts"][0]["cut"] = [-0.0001, -0.0004, 0.0003]
    page = open_page(made_up_page(evidence=evidence))
    expect(page.locator(".cuts tbody tr").first).to_contain_text("0.000 [0.000, 0.000]")
    assert not re.search(r"−0\.0+(?!\d)", page.locator("main").inner_text())


def test_a_great_page_stays_usable(open_page):
    """64 characters, 16 heads, 20 snapshots."""
    steps = tuple(range(0, 2000, 100))
    maps = made_up_maps(PROBES[2], 4, 4, steps)
    predictions = made_up_predictions(PROBES[2])
    page = open_page({"texts": page_texts({"0": maps}, {"0": predictions})})
    page.keyboard.press("Shift+Digit4")
    page.keyboard.press("4")
    character(page, 60).click()
    for index in range(20):
        move_slider(page, index)
    move_slider(page, 7)
    assert shown(page) == expected(maps[7].weights[3, 3], 60)


@pytest.mark.parametrize("locale", ["zh-CN", "en-GB"])
def test_nothing_sticks_out_of_the_window(open_page, locale):
    page = open_page(locale=locale)
    page.locator('.text[data-text="2"]').click()
    for width in (1400, 1100, 820, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("kinds", "shown_first"),
    [
        ("mixed mixed", "全部头的平均"),
        ("mixed meaning", "第 1 层第 2 头意思"),
        (None, "全部头的平均"),
    ],
)
def test_without_evidence_it_opens_with_the_meaning_head_or_the_mean(open_page, kinds, shown_first):
    data: dict = {"texts": page_texts({"0": made_up_maps("明月光", 1, 2, (0, 9))})}
    if kinds:
        names = {"name_zh": "意思", "name_en": "meaning", "score": None}
        data["atlas"] = [[{"key": kind, **names} for kind in kinds.split()]]
    expect(open_page(data).locator("#map-title")).to_have_text(shown_first)


def test_prints_in_light_colours(open_page):
    page = open_page(color_scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.emulate_media(media="print")
    expect(page.locator("#play")).to_be_hidden()
