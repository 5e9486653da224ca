"""Pictures: what stands in them, with and without a Chinese font, and that nothing of them stays."""

import gc
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib import font_manager
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from maps import picture
from maps.capture import AttentionMap, MapError
from maps.picture import MARK, draw_loss, draw_maps

TEXT = "明月，见月光。"
FONT = "DejaVu Sans"  # comes with matplotlib; here it stands for a Chinese font


def make_map(text: str = TEXT, n_layer: int = 2, n_head: int = 3) -> AttentionMap:
    T = len(text) + 1
    weights = np.tril(np.random.default_rng(3).random((n_layer, n_head, T, T)) ** 4)
    weights /= weights.sum(-1, keepdims=True)
    return AttentionMap(weights.astype(np.float32), ["\n", *text], 7, 5.25)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws as `draw_maps` does and returns the figure that was saved."""
    figures = []
    save = picture._save
    monkeypatch.setattr(picture, "_save", lambda figure, path: figures.append(figure))
    monkeypatch.setattr(picture, "chinese_font", lambda: FONT)

    def draw(*arguments, saved: bool = False, **options) -> Figure:
        draw_maps(arguments[0], tmp_path / "map.png", *arguments[1:], **options)
        if saved:
            save(figures[-1], tmp_path / "map.png")
        return figures.pop()

    return draw


def heads_of(figure: Figure) -> list:
    return [ax for ax in figure.axes if ax.images]


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_one_head_large(drawn):
    map = make_map()
    figure = drawn(map, 2, 3, saved=True)
    [ax] = heads_of(figure)
    shown = ax.images[0].get_array()
    lower = np.tril(np.ones((8, 8), bool))
    np.testing.assert_array_equal(shown.filled(0)[lower], map.weights[1, 2][lower])
    np.testing.assert_array_equal(shown.mask, ~lower)  # what comes later is left out
    assert ax.images[0].get_clim() == (0, 1)
    assert labels(ax.xaxis) == labels(ax.yaxis) == ["始", *TEXT]
    assert "key" in ax.get_xlabel() and "query" in ax.get_ylabel()
    assert figure.get_suptitle() == "layer 2, head 3 · step 7 · held-out loss 5.250"


def test_all_heads_in_a_grid_of_one_scale(drawn):
    map = make_map()
    axes = heads_of(drawn(map))
    assert [ax.texts[0].get_text() for ax in axes] == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]
    for ax, weights in zip(axes, map.weights.reshape(6, 8, 8), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array().filled(0), weights)
        assert ax.images[0].get_clim() == (0, 1)
    assert len(heads_of(drawn(map, layer=2))) == 3 and len(heads_of(drawn(map, head=1))) == 2


def test_greater_weights_are_darker_and_half_as_dark_at_a_quarter(drawn):
    [ax] = heads_of(drawn(make_map(), 1, 1))
    colour = ax.images[0].to_rgba
    shades = [sum(colour(weight)[:3]) for weight in np.linspace(0, 1, 101)]
    assert all(later < earlier for earlier, later in zip(shades, shades[1:], strict=False))
    middle = to_rgb(picture.COLOURS[len(picture.COLOURS) // 2])
    np.testing.assert_allclose(colour(0.25)[:3], middle, atol=0.01)


def test_pictures_and_the_page_have_the_same_colours():
    script = (Path(picture.__file__).parent / "page" / "page.js").read_text(encoding="utf-8")
    light = re.search(r"light: \[(.*?)\n    \],", script, re.S)[1]
    stops = [tuple(map(int, stop)) for stop in re.findall(r"\[(\d+), (\d+), (\d+)\]", light)]
    assert [tuple(round(255 * part) for part in to_rgb(c)) for c in picture.COLOURS] == stops


def test_the_row_of_the_last_query_is_marked(drawn):
    for ax in heads_of(drawn(make_map(), query="月")):
        [frame] = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        assert frame.get_bbox().extents.tolist() == [-0.5, 4.5, 5.5, 5.5]  # row 5, its 6 keys
        assert [tick.get_color() == MARK for tick in ax.get_yticklabels()].index(True) == 5
    assert not heads_of(drawn(make_map()))[0].patches


def test_a_long_text_in_a_grid_is_labelled_where_lines_begin(drawn):
    text = "明月见月光，" * 10
    [ax, *_] = heads_of(drawn(make_map(text)))
    assert [round(tick) for tick in ax.get_xticks()] == [0, *range(7, 61, 6)]
    [ax] = heads_of(drawn(make_map(text), 1, 1))
    assert labels(ax.xaxis) == ["始", *text]


def test_a_map_without_a_loss_says_nothing_of_it(drawn):
    map = make_map()
    without = AttentionMap(map.weights, map.tokens, 0, math.nan)
    assert drawn(without).get_suptitle() == "layer.head · step 0"


def test_the_file_is_a_picture_of_the_weights(tmp_path):
    ones = AttentionMap(np.ones((1, 1, 1, 1), np.float32), ["\n"], 0, math.nan)
    draw_maps(ones, tmp_path / "map.png", 1, 1)
    pixels = imread(tmp_path / "map.png")
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2 - 30, :3]
    np.testing.assert_allclose(middle, to_rgb(picture.COLOURS[-1]), atol=0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


def test_without_a_chinese_font_positions_stand_in(monkeypatch, capsys, drawn):
    monkeypatch.undo()
    fonts = [font for font in font_manager.fontManager.ttflist if font.name == FONT]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    figures = []
    monkeypatch.setattr(picture, "_save", lambda figure, path: figures.append(figure))
    draw_maps(make_map(), "map.png", 1, 2, "月")
    [ax] = heads_of(figures[0])
    assert labels(ax.xaxis) == labels(ax.yaxis) == [str(i) for i in range(8)]
    texts = [t.get_text() for t in figures[0].findobj(lambda a: hasattr(a, "get_text"))]
    assert not any(ord(c) > 0x2E80 for text in texts for c in text)  # nothing that would be a box
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("warning: ") and "Noto Sans CJK" in err


def test_a_picture_that_cannot_be_written_gives_no_advice_on_fonts(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("maps.picture.chinese_font", lambda: None)
    with pytest.raises(OSError):
        draw_maps(make_map(), tmp_path / "nowhere" / "map.png")
    assert capsys.readouterr().err == ""  # the error's line stands alone


def test_a_font_installed_since_matplotlib_listed_them_is_found(monkeypatch, tmp_path):
    [font, *_] = [font for font in font_manager.fontManager.ttflist if font.name == FONT]
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(picture, "FONTS", (FONT,))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    assert picture.chinese_font() is None
    installed = [str(tmp_path / "broken.ttf"), font.fname]
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    assert picture.chinese_font() == FONT


def test_the_most_legible_chinese_font_is_taken(monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])

    def fonts(*names):
        return [font_manager.FontEntry(name=name) for name in names]

    for known, chosen in [
        (fonts("SimHei", FONT, "Microsoft YaHei"), "Microsoft YaHei"),
        (fonts("WenQuanYi Zen Hei", "Noto Sans CJK SC"), "Noto Sans CJK SC"),
        (fonts(FONT), None),
    ]:
        monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
        assert picture.chinese_font() == chosen


def test_nothing_of_many_pictures_stays(tmp_path):
    def figures() -> int:
        gc.collect()
        return sum(type(thing) is Figure for thing in gc.get_objects())

    before = figures()
    for number in range(3):
        draw_maps(make_map(), tmp_path / f"{number}.png", 1, 1)
        draw_loss([{"step": 0, "train_loss": 8.0, "val_loss": 8.5}], tmp_path / "loss.png")
    assert figures() == before


def test_losses_against_steps(monkeypatch):
    figures = []
    monkeypatch.setattr(picture, "_save", lambda figure, path: figures.append(figure))
    metrics = [
        {"step": 0, "train_loss": None, "val_loss": 8.5},
        {"step": 5, "train_loss": 8.0, "val_loss": None},
        {"step": 10, "train_loss": 7.0, "val_loss": 7.5},
    ]
    draw_loss(iter(metrics), "loss.png", {"counting": 6.0})
    [ax] = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}
    assert lines["training"] == [[5, 8], [10, 7]] and lines["held out"] == [[0, 8.5], [10, 7.5]]
    assert [text.get_text() for text in ax.texts] == ["counting"] and ax.texts[0].xy[1] == 6.0


@pytest.mark.parametrize(("options", "says"), [({"layer": 3}, "layer 3"), ({"query": "霜"}, "霜")])
def test_what_is_not_there_makes_no_picture(tmp_path, options, says):
    with pytest.raises(MapError, match=says):
        draw_maps(make_map(), tmp_path / "map.png", **options)
    assert not any(tmp_path.iterdir())


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (draw_maps, draw_loss):
        with pytest.raises(MapError, match="need matplotlib: run `pip install"):
            draw(make_map() if draw is draw_maps else [], tmp_path / "picture.png")
    assert not any(tmp_path.iterdir())
