"""The state view's picture: hover, zoom, keys and colours."""

import re

import numpy as np
import pytest
from helpers.browser import has

# Edges may be smoothed a little differently: a path's length decides how Chromium does it.
AS_SHOWN_ANEW = """() => {
  const gl = document.querySelector('#chat-view .gl'), names = ['magnitude', 'phase', 'layers'];
  const pixels = () => names.map(name => gl.querySelector(`.${name}`)).map(canvas =>
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data);
  gl.view.draw();  // what has just come
  const before = pixels();
  gl.view.heatmaps.show();  // all of it
  const after = pixels();
  return names.filter((_, i) => before[i].some((value, at) => Math.abs(value - after[i][at]) > 48));
}"""
ZOOM = """zoom => {
  const slider = document.querySelector('#chat-view .zoom');
  slider.value = zoom;
  slider.dispatchEvent(new Event('input'));
}"""
SCROLL = "left => { document.querySelector('#chat-view .scroll').scrollLeft = left }"
# What the canvas shows at a place, and what the picture has there.
COLOURS = """([x, y, token, row]) => {
  const gl = document.querySelector('#chat-view .gl'), canvas = gl.querySelector('.magnitude');
  const pixel = (of, x, y) => [...of.getContext('2d').getImageData(x, y, 1, 1).data];
  return [pixel(canvas, x, y), pixel(gl.view.heatmaps.pictures[0].canvas, token, row)];
}"""
# Colours in the canvas of magnitudes that its picture has not, below the marks of resets.
FOREIGN_COLOURS = """() => {
  const { pictures, canvases } = document.querySelector('#chat-view .gl').view.heatmaps;
  const colours = (canvas, top) => {
    const size = [canvas.width, canvas.height - top];
    const bytes = canvas.getContext('2d').getImageData(0, top, ...size).data;
    return new Set(new Uint32Array(bytes.buffer));
  };
  const held = colours(pictures[0].canvas, 0).add(0xffffffff);  // of the chosen token
  return [...colours(canvases[0], 6)].filter(colour => !held.has(colour)).length;
}"""

# The upper edge of the picture of all layers in the middle of each column, and the words below it.
LIT = """width => {
  const gl = document.querySelector('#chat-view .gl');
  const [layers, axis] = ['layers', 'axis'].map(name => gl.querySelector(`.${name}`));
  const at = i => layers.getContext('2d').getImageData((i + 0.5) * width, 0, 1, 4).data.join();
  return [...gl.view.pieces.map((_, i) => at(i)), axis.toDataURL()];
}"""


def test_hover_tells_what_the_arrays_hold(page, arrays):
    page.ask("hover")
    page.finished()
    page.painted()
    held = arrays(page)
    canvas = page.tab.locator("#chat-view .magnitude")
    box, width = canvas.bounding_box(), page.view("heatmaps.shown.width")
    for token, channel in ((10, 20), (0, 0), (50, page.channels - 1)):
        y = box["height"] * (channel + 0.5) / page.channels
        canvas.hover(position={"x": (token + 0.5) * width, "y": y})
        tip = page.tab.locator("#chat-view .tip").inner_text()
        assert f", token {token}\nchannel {channel}: keeps " in tip
        magnitude, life, phase = (
            float(re.search(pattern, tip)[1].replace(",", ""))
            for pattern in (r"keeps (\S+)%", r"remains after (\S+) such", r"turned by (\S+)°")
        )
        exact = held["magnitude"][0, token, channel]
        assert magnitude == pytest.approx(100 * exact, abs=3)  # of a code of 8 bits
        assert life == pytest.approx(-np.log(2) / np.log(exact), rel=0.05, abs=0.01)
        assert phase == pytest.approx(np.degrees(held["phase"][0, token, channel]), abs=1.5)


def test_channels_do_not_bleed_into_each_other(page):
    page.set_tokens(24)
    page.choose("slow")  # more channels than pixels
    page.ask("colours")
    page.finished()
    page.painted()
    assert page.view("heatmaps.pictures[0].row") == 2
    assert page.tab.evaluate(FOREIGN_COLOURS) == 0
    assert "means of 2 channels" in page.tab.locator("#chat-view .stack").inner_text()
    page.tab.locator("#chat-view .magnitude").hover(position={"x": 40, "y": 20})
    assert "mean of channels " in page.tab.locator("#chat-view .tip").inner_text()


@pytest.mark.slow
def test_hover_and_click_stay_in_sight_on_a_small_screen(new_page):
    page = new_page(viewport={"width": 1280, "height": 720})
    page.set_tokens(300)
    page.ask("small")
    page.finished()
    assert page.tab.evaluate("scrollY") == 0  # the message box is in sight
    picture = page.tab.locator("#chat-view .layers")
    for x in (3, 300, 690):
        picture.hover(position={"x": x, "y": 60})
        inside(page.tab.locator("#chat-view .tip").bounding_box(), 1280, 720)
        picture.click(position={"x": x, "y": 60})
        assert page.tab.evaluate("scrollY") == 0
    place = "span => span.getBoundingClientRect().y - span.parentElement.getBoundingClientRect().y"
    chosen = page.tab.locator("#chat-view .text span.selected").evaluate(place)
    assert 0 <= chosen <= 140  # of 150: the text scrolls itself
    page.tab.mouse.move(10, 10)
    assert not page.tab.locator("#chat-view .tip").is_visible()
    before = picture.bounding_box()
    long = "name => { name.textContent = 'at ' + 'a long word '.repeat(20) }"
    page.tab.locator("#chat-view .memory").evaluate(long)
    assert picture.bounding_box() == before


def inside(box, width, height):
    assert 0 <= box["x"] < box["x"] + box["width"] <= width
    assert 0 <= box["y"] < box["y"] + box["height"] <= height


def test_words_and_columns_light_each_other(page):
    page.ask("light")
    page.finished()
    page.painted()
    lit = page.tab.locator("#chat-view .text .pointed")
    width = page.view("heatmaps.shown.width")
    dark = page.tab.evaluate(LIT, width)
    token = next(i for i in range(20, 60) if page.view(f"heatmaps.axis.words[{i}].length"))
    at = {"x": (token + 0.5) * width, "y": 20}
    for name in ("layers", "magnitude", "phase", "axis"):
        page.tab.locator(f"#chat-view .{name}").hover(position=at)
        assert lit.get_attribute("data-token") == str(token), name
    word = page.tab.locator(f"#chat-view .text span[data-token='{token + 1}']")
    word.dispatch_event("mouseover")
    page.painted()
    bright = page.tab.evaluate(LIT, width)
    changed = [i for i, (a, b) in enumerate(zip(dark, bright, strict=True)) if a != b]
    assert changed == [token + 1, len(dark) - 1]
    assert page.view("heatmaps.axis.words[0]") == ""  # a special token's


def test_keys_point_at_rows_and_words(page):
    page.ask("keys that point")
    tokens = page.finished()
    picture, tip = (page.tab.locator(f"#chat-view .{name}") for name in ("layers", "tip"))
    picture.press("ArrowLeft")
    assert f"token {tokens - 2}\nlayer 1 keeps" in tip.inner_text()
    picture.press("ArrowDown")
    picture.press("ArrowDown")
    assert "layer 3 keeps" in tip.inner_text()
    inside(tip.bounding_box(), 1280, 900)
    picture.press("Enter")
    assert page.tab.locator("#chat-view .layer").input_value() == "2"
    text = page.tab.locator("#chat-view .text")
    text.press("Shift+ArrowLeft")
    pointed = page.tab.locator("#chat-view .text .pointed")
    assert pointed.get_attribute("data-token") == str(tokens - 3)
    assert f"token {tokens - 3}" in page.tab.locator("#chat-view .share").inner_text()
    assert page.view("memory.selected") == tokens - 2


def test_formulas_are_behind_a_question_mark(page):
    stack = page.tab.locator("#chat-view")
    for sign in ("|a|", "h = a h", "Re("):
        assert sign not in stack.inner_text()
    page.tab.get_by_label("About how long it keeps this").first.press("Enter")
    assert "h = a h + k v" in stack.inner_text()


@pytest.mark.parametrize(
    ("zoom", "scroll", "tokens"),
    [
        (0, 0, 60),
        pytest.param(3, 0, 60, marks=pytest.mark.slow),
        pytest.param(0, 0, 500, marks=pytest.mark.slow),
        pytest.param(3, 203, 200, marks=pytest.mark.slow),
    ],
)
def test_painting_what_is_new_gives_what_painting_all_gives(page, zoom, scroll, tokens):
    page.set_tokens(1024)
    page.choose("slow")  # some ten tokens an answer of the server
    page.tab.evaluate(ZOOM, zoom)
    page.ask("now")
    page.tab.wait_for_function(has(tokens // 2))
    page.tab.locator("#chat-view .text span").nth(tokens // 2 - 1).dispatch_event("click")
    page.tab.evaluate(SCROLL, scroll)
    for count in (tokens, tokens + 15):
        page.tab.wait_for_function(has(count))
        page.painted()
        assert not page.view("done")
        assert page.tab.evaluate(AS_SHOWN_ANEW) == []


def test_hover_names_the_token_under_the_pointer_when_zoomed_and_scrolled(page):
    zoom, width, left, rows = 8, 48, 323, page.channels
    page.ask("zoom")
    page.finished()
    page.tab.evaluate(ZOOM, zoom)
    page.tab.evaluate(SCROLL, left)
    page.painted()
    canvas = page.tab.locator("#chat-view .magnitude")
    box = canvas.bounding_box()
    for x, row in ((3, 5), (100, 40), (250, 2)):  # below the marks
        token, y = int((left + x) / width), int(box["height"] * (row + 0.5) / rows)
        canvas.hover(position={"x": x, "y": y})
        tip = page.tab.locator("#chat-view .tip").inner_text()
        assert f"token {token}\nchannel {row}: " in tip
        page.tab.mouse.move(0, 0)  # the column is no longer lit
        page.painted()
        shown, held = page.tab.evaluate(COLOURS, [x, y, token, row])
        assert shown == held


def test_keys_select_and_zoom_but_for_those_of_the_browser(page):
    page.ask("keys")
    tokens = page.finished()
    chosen = page.tab.locator("#chat-view .text span.selected")
    text = page.tab.locator("#chat-view .text")
    for key, expected in (("Home", 0), ("Control+ArrowRight", 0), ("End", tokens - 1)):
        text.press(key)
        assert chosen.get_attribute("data-token") == str(expected)
    widths = []
    for key in ("+", "+", "+", "-", "Control++"):
        page.tab.locator("#chat-view .magnitude").press(key)
        widths.append(page.view("heatmaps.shown.width"))
    assert widths[0] < widths[1] < widths[2]
    assert widths[1] == widths[3] == widths[4]
