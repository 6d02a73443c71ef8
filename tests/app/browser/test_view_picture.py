"""The state view's pictures: hover, keys, colours, zoom and two views with one scale."""

import re
from io import BytesIO

import numpy as np
import pytest
from helpers.browser import has, new_context, view
from PIL import Image

from browser.conftest import Visitor

pytestmark = pytest.mark.slow
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SHOWN = "heatmaps.shown"
# Edges may be smoothed a little differently: a path's length decides how Chromium does it.
AS_PAINTED_AGAIN = """() => {
  const gl = document.querySelector('#chat-view .gl'), names = ['magnitude', 'phase', 'layers'];
  const pixels = () => names.map(name => gl.querySelector(`.${name}`)).map(canvas =>
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data);
  gl.view.draw();  // what has just come
  const before = pixels();
  gl.view.heatmaps.show();  // all of it
  const after = pixels();
  return names.filter((_, i) => before[i].some((value, at) => Math.abs(value - after[i][at]) > 48));
}"""
ZOOM = """([view, zoom]) => {
  const slider = document.querySelector(`#${view}-view .zoom`);
  slider.value = zoom;
  slider.dispatchEvent(new Event('input'));
}"""
SCROLL = "left => { document.querySelector('#chat-view .scroll').scrollLeft = left }"
# The colours of a picture, without alpha.
HELD = """name => {
  const { canvas } = document.querySelector('#chat-view .gl').view.heatmaps.pictures[name];
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 3).join());
  return [...colours];
}"""
# The upper edge of the picture of all layers in the middle of each column, and the words below it.
LIT = """width => {
  const gl = document.querySelector('#chat-view .gl');
  const [layers, axis] = ['layers', 'axis'].map(name => gl.querySelector(`.${name}`));
  const at = i => layers.getContext('2d').getImageData((i + 0.5) * width, 0, 1, 4).data.join();
  return [...gl.view.pieces.map((_, i) => at(i)), axis.toDataURL()];
}"""


def part(page, name):
    return page.tab.locator(f"#chat-view .{name}")


def inside(box, width, height):
    assert 0 <= box["x"] < box["x"] + box["width"] <= width
    assert 0 <= box["y"] < box["y"] + box["height"] <= height


def test_hover_tells_what_the_arrays_hold(answered, arrays):
    page, held = answered, arrays(answered)
    canvas = part(page, "magnitude")
    box, width = canvas.bounding_box(), page.view(SHOWN)["width"]
    for token, channel in ((10, 20), (0, 0), (50, page.channels - 1)):
        y = box["height"] * (channel + 0.5) / page.channels
        canvas.hover(position={"x": (token + 0.5) * width, "y": y})
        tip = part(page, "tip").inner_text()
        assert f", token {token}\nchannel {channel}: keeps " in tip
        magnitude, life, phase = (
            float(re.search(pattern, tip)[1].replace(",", ""))
            for pattern in (r"keeps (\S+)%", r"remains after (\S+) such", r"turned by (\S+)°")
        )
        exact = held["magnitude"][0, token, channel]
        assert magnitude == pytest.approx(100 * exact, abs=3)  # codes have 8 bits
        assert life == pytest.approx(-np.log(2) / np.log(exact), rel=0.05, abs=0.01)
        assert phase == pytest.approx(np.degrees(held["phase"][0, token, channel]), abs=1.5)


def test_hover_names_the_token_under_the_pointer_when_zoomed_and_scrolled(answered):
    page = answered
    page.tab.evaluate(ZOOM, ["chat", 8])
    page.tab.evaluate(SCROLL, 323)
    page.painted()
    part(page, "magnitude").hover(position={"x": 100, "y": 40})
    assert f", token {(323 + 100) // 48}\n" in part(page, "tip").inner_text()


def test_words_and_columns_light_each_other(answered):
    page, width = answered, answered.view(SHOWN)["width"]
    dark = page.tab.evaluate(LIT, width)
    token = next(i for i in range(20, 60) if page.view(f"heatmaps.axis.words[{i}].length"))
    for name in ("layers", "magnitude", "phase", "axis"):
        part(page, name).hover(position={"x": (token + 0.5) * width, "y": 20})
        assert part(page, "text .pointed").get_attribute("data-token") == str(token), name
    page.tab.locator(f"#chat-view .text span[data-token='{token + 1}']").dispatch_event("mouseover")
    page.painted()
    bright = page.tab.evaluate(LIT, width)
    changed = [i for i, (a, b) in enumerate(zip(dark, bright, strict=True)) if a != b]
    assert changed == [token + 1, len(dark) - 1]
    assert page.view("heatmaps.axis.words[0]") == ""  # a special token's


def test_keys_select_point_and_zoom_but_for_those_of_the_browser(answered):
    page, tokens = answered, answered.view("pieces.length")
    picture, text, tip = (part(page, name) for name in ("layers", "text", "tip"))
    picture.press("ArrowLeft")
    assert f"token {tokens - 2}\nlayer 1 keeps" in tip.inner_text()
    picture.press("ArrowDown")
    picture.press("ArrowDown")
    assert "layer 3 keeps" in tip.inner_text()
    inside(tip.bounding_box(), 1280, 900)
    picture.press("Enter")
    assert part(page, "layer").input_value() == "2"
    text.press("Shift+ArrowLeft")
    assert part(page, "text .pointed").get_attribute("data-token") == str(tokens - 3)
    assert f"token {tokens - 3}" in part(page, "share").inner_text()
    assert page.view("memory.selected") == tokens - 2
    for key, expected in (("Home", 0), ("Control+ArrowRight", 0), ("End", tokens - 1)):
        text.press(key)
        assert page.chosen() == expected
    widths = []
    for key in ("+", "+", "+", "-", "Control++"):
        part(page, "magnitude").press(key)
        widths.append(page.view(SHOWN)["width"])
    assert widths[0] < widths[1] < widths[2]
    assert widths[1] == widths[3] == widths[4]


def test_the_wheel_zooms_with_ctrl_about_the_pointer_and_drags_pan(answered):
    page, canvas = answered, part(answered, "layers")
    canvas.hover(position={"x": 400, "y": 40})
    before, token, chosen = page.view(SHOWN), at(page, 400), page.chosen()
    page.tab.keyboard.down("Control")
    for _ in range(2):
        page.tab.mouse.wheel(0, -100)
    page.tab.keyboard.up("Control")
    page.tab.wait_for_function(f"{view()}.heatmaps.shown.width > {1.9 * before['width']}")
    assert page.view(SHOWN)["width"] == pytest.approx(2 * before["width"], rel=0.01)
    assert at(page, 400) == pytest.approx(token, abs=0.2)
    page.tab.mouse.down()
    box = canvas.bounding_box()
    page.tab.mouse.move(box["x"] + 250, box["y"] + 40, steps=3)
    page.tab.mouse.up()
    page.painted()
    assert at(page, 250) == pytest.approx(token, abs=0.3)  # it went along
    assert page.chosen() == chosen  # which no click was
    canvas.dblclick(position={"x": 100, "y": 40})
    page.painted()
    assert page.view(SHOWN) == before


def at(page, x):
    """The token at a point of the picture, with its fraction."""
    shown = page.view(SHOWN)
    return shown["first"] + x / shown["width"]


@pytest.mark.parametrize(("zoom", "scroll", "tokens"), [(0, 0, 25), (3, 203, 200)])
def test_painting_what_is_new_gives_what_painting_all_gives(page, zoom, scroll, tokens):
    page.set_tokens(1024)
    page.choose("slow")  # more channels than pixels
    page.tab.evaluate(ZOOM, ["chat", zoom])
    page.ask("now")
    page.tab.wait_for_function(has(tokens // 2))
    part(page, "text span").nth(tokens // 2 - 1).dispatch_event("click")
    page.tab.evaluate(SCROLL, scroll)
    for count in (tokens, tokens + 15):
        page.tab.wait_for_function(has(count))
        page.painted()
        assert not page.view("recording.done")
        assert page.tab.evaluate(AS_PAINTED_AGAIN) == []
    page.tab.locator("#chat-stop").dispatch_event("click")  # it may have ended
    page.finished()
    assert page.view("heatmaps.pictures[0].row") == 2
    assert "means of 2 channels" in part(page, "stack").inner_text()
    part(page, "magnitude").hover(position={"x": 40, "y": 20})
    assert "mean of channels " in part(page, "tip").inner_text()


@pytest.fixture(scope="module")
def phone(browser, server):
    """A phone whose pixels are no multiple of the page's."""
    page = Visitor(new_context(browser, device_scale_factor=2.625, **PHONE), server.url)
    page.answer("a long message without any end " * 4)
    yield page
    problems = page.problems
    page.tab.context.close()
    assert not problems


def test_columns_are_sharp_and_tips_stay_inside_a_phone(phone):
    for zoom in (0.3, 3.1):
        phone.tab.evaluate(ZOOM, ["chat", zoom])
        phone.painted()
        for i, name in enumerate(("magnitude", "phase")):
            with Image.open(BytesIO(part(phone, name).screenshot())) as picture:
                pixels = np.asarray(picture.convert("RGB"))[30:-30, 30:-30].reshape(-1, 3)
            seen = {",".join(map(str, colour)) for colour in np.unique(pixels, axis=0)}
            held = phone.tab.evaluate(HELD, i)
            assert seen <= {*held, "255,255,255", "11,10,18"}, name  # the mark and the ground
            assert len(seen) > 5
    for x in (4, 150, 298):
        part(phone, "layers").hover(position={"x": x, "y": 60})
        inside(part(phone, "tip").bounding_box(), 390, 844)


def test_a_phone_shows_everything_in_one_column(phone):
    chat, view = (phone.tab.locator(f"#{name}").bounding_box() for name in ("chat", "chat-view"))
    assert view["y"] >= chat["y"] + chat["height"]
    phone.go_to("Side by side", "left")
    phone.answer("a long message without any end " * 4, "compare", "left")
    for name in ("chat", "left"):
        phone.go_to("Chat" if name == "chat" else "Side by side", name)
        assert phone.tab.evaluate("document.documentElement.scrollWidth") <= 390
        box = phone.tab.locator(f"#{name}-view").bounding_box()
        assert box["x"] >= 0
        assert box["width"] > 300
    phone.go_to("Chat", "chat")


def test_two_fingers_zoom_about_the_point_between_them(phone):
    canvas = part(phone, "layers")
    phone.tab.evaluate(ZOOM, ["chat", 0])
    canvas.scroll_into_view_if_needed()
    box, before = canvas.bounding_box(), phone.view(SHOWN)["width"]
    token = at(phone, 150)
    touch = phone.tab.context.new_cdp_session(phone.tab)

    def fingers(kind, *xs):
        points = [{"x": box["x"] + x, "y": box["y"] + 40, "id": i} for i, x in enumerate(xs)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", 130)
    fingers("touchStart", 130, 170)
    for apart in (30, 40, 50, 60):
        fingers("touchMove", 150 - apart, 150 + apart)
    fingers("touchEnd")
    phone.painted()
    width = phone.view(SHOWN)["width"]
    assert width == pytest.approx(3 * before, rel=0.02)
    # in pixels, to which each move is rounded
    assert at(phone, 150) * width == pytest.approx(token * width, abs=5.5)


def test_side_by_side_has_one_scale_and_one_token(seeded):
    page = seeded
    page.go_to("Side by side", "right")
    page.answer("both", "compare", "left")
    page.finished("right")
    assert page.view("run", "left") != page.view("run", "right")

    def both(what):
        return [page.view(what, side) for side in ("left", "right")]

    page.tab.evaluate(ZOOM, ["right", 5])
    page.painted()
    assert both("heatmaps.zoom.valueAsNumber") == [5, 5]
    page.tab.evaluate("document.querySelector('#left-view .scroll').scrollLeft = 321")
    page.painted()
    first, other = both(SHOWN)
    assert first == other
    assert first["first"] * first["width"] == pytest.approx(321)
    page.tab.locator("#right-view .text span").nth(7).dispatch_event("click")
    page.tab.locator("#left-view .text span").nth(9).dispatch_event("mouseover")
    assert both("memory.selected") == [7, 7]
    assert both("memory.pointed") == [9, 9]
    for side in ("left", "right"):
        row = f"document.querySelector('#{side}-view .gl').view.memory.row?.retention.length === 8"
        page.tab.wait_for_function(row)
