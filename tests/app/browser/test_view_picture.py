"""The state view's picture: hover, zoom, keys and colours."""

import re

import numpy as np
import pytest
from helpers.browser import QUESTIONS, has

# Edges may be smoothed a little differently: a path's length decides how Chromium does it.
AS_SHOWN_ANEW = """() => {
  const gl = document.querySelector('#chat-view .gl'), names = ['magnitude', 'phase', 'layers'];
  const pixels = () => names.map(name => gl.querySelector(`.${name}`)).map(canvas =>
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data);
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
  const held = colours(pictures[0].canvas, 0);
  return [...colours(canvases[0], 6)].filter(colour => !held.has(colour)).length;
}"""


def test_hover_tells_what_the_arrays_hold(page, arrays):
    page.ask("hover")
    page.finished()
    page.painted()
    held = arrays(page)
    box = page.tab.locator("#chat-view .magnitude").bounding_box()
    width = min(16, box["width"] / len(page.view("pieces")))
    for token, channel in ((10, 20), (0, 0), (50, page.channels - 1)):
        page.tab.mouse.move(
            box["x"] + (token + 0.5) * width,
            box["y"] + box["height"] * (channel + 0.5) / page.channels,
        )
        tip = page.tab.locator("#chat-view .tip").inner_text()
        assert tip.startswith(f"token {token} ")
        assert f" channel {channel} " in tip
        magnitude, life, phase = (
            float(re.search(pattern, tip)[1].replace(",", ""))
            for pattern in (r"\|a\| (\S+)", r"half-life (\S+)", r"phase (\S+)°")
        )
        exact = held["magnitude"][0, token, channel]
        assert magnitude == pytest.approx(exact, abs=0.03)  # of a code of 8 bits
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


def test_hover_and_click_stay_in_sight_on_a_small_screen(new_page):
    page = new_page(viewport={"width": 1280, "height": 720})
    page.set_tokens(300)
    page.ask("small")
    page.finished()
    picture = page.tab.locator("#chat-view .magnitude")
    picture.hover(position={"x": 100, "y": 100})
    tip = page.tab.locator("#chat-view .tip")
    assert tip.inner_text().startswith("token ")
    box = tip.bounding_box()
    assert 0 <= box["y"] < box["y"] + box["height"] <= 720
    for x in (5, 300, 600):
        picture.click(position={"x": x, "y": 100})
        assert page.tab.evaluate("scrollY") == 0
    chosen = page.tab.locator("#chat-view .text span.selected").bounding_box()
    text = page.tab.locator("#chat-view .text").bounding_box()
    assert text["y"] <= chosen["y"] <= text["y"] + text["height"] - 10  # it scrolls itself


@pytest.mark.parametrize(
    ("zoom", "scroll", "tokens"),
    [
        (0, 0, 60),
        (3, 203, 200),
        pytest.param(0, 0, 500, marks=pytest.mark.slow),
        pytest.param(3, 0, 60, marks=pytest.mark.slow),
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
    page.tab.wait_for_function(has(tokens))
    asked = []

    def one_answer(route):  # without marks, as new ones make everything be painted
        asked.append(route)
        if len(asked) == 1:
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"resets": None})

    page.tab.route(QUESTIONS, one_answer)
    while len(asked) < 2:  # a question comes after the answer to the one before
        page.tab.wait_for_timeout(10)
    page.painted()
    assert not page.view("done")
    assert page.tab.evaluate(AS_SHOWN_ANEW) == []
    asked[1].continue_()
    page.tab.unroute(QUESTIONS)


def test_hover_names_the_token_under_the_pointer_when_zoomed_and_scrolled(page):
    zoom, width, left, rows = 8, 48, 323, page.channels
    page.ask("zoom")
    page.finished()
    page.tab.evaluate(ZOOM, zoom)
    page.tab.evaluate(SCROLL, left)
    page.painted()
    canvas = page.tab.locator("#chat-view .magnitude")
    box, pieces = canvas.bounding_box(), page.view("pieces")
    for x, row in ((3, 5), (100, 40), (250, 2)):  # below the marks
        token, y = int((left + x) / width), int(box["height"] * (row + 0.5) / rows)
        canvas.hover(position={"x": x, "y": y})
        tip = page.tab.locator("#chat-view .tip").inner_text()
        assert re.match(rf"token {token} “.*” · channel {row} ", tip)
        assert "".join(re.findall(r"[\w ]", pieces[token]["text"])) in tip
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
