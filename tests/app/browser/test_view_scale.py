"""The state view's scale: wheel, fingers, drags, sharp columns, and two views with one scale."""

from io import BytesIO

import numpy as np
import pytest
from helpers.browser import new_context, view
from PIL import Image

from browser.conftest import Visitor

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SHOWN = "heatmaps.shown"
# The colours of a picture, without alpha.
HELD = """name => {
  const { pictures } = document.querySelector('#chat-view .gl').view.heatmaps;
  const { canvas } = pictures[name];
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 3).join());
  return [...colours];
}"""
ZOOM = """([view, zoom]) => {
  const slider = document.querySelector(`#${view}-view .zoom`);
  slider.value = zoom;
  slider.dispatchEvent(new Event('input'));
}"""


@pytest.fixture(scope="module")
def phone(browser, server):
    """A phone whose pixels are no multiple of the page's."""
    page = Visitor(new_context(browser, device_scale_factor=2.625, **PHONE), server.url)
    page.set_tokens(page.tokens)
    page.ask("on a phone")
    page.finished()
    page.painted()
    yield page
    problems = page.problems
    page.tab.context.close()
    assert not problems


def at(page, x):
    """The token at a place of the picture, with its fraction."""
    shown = page.view(SHOWN)
    return shown["first"] + x / shown["width"]


def test_the_wheel_zooms_with_ctrl_about_the_pointer_and_drags_pan(page):
    page.ask("wheel")
    page.finished()
    page.painted()
    canvas = page.tab.locator("#chat-view .layers")
    canvas.hover(position={"x": 400, "y": 40})
    before, token = page.view(SHOWN), at(page, 400)
    page.tab.keyboard.down("Control")
    for _ in range(2):
        page.tab.mouse.wheel(0, -100)
    page.tab.keyboard.up("Control")
    page.tab.wait_for_function(f"{view()}.heatmaps.shown.width > {1.9 * before['width']}")
    assert page.view(SHOWN)["width"] == pytest.approx(2 * before["width"], rel=0.01)
    assert at(page, 400) == pytest.approx(token, abs=0.2)
    chosen = page.view("memory.selected")
    page.tab.mouse.down()
    box = canvas.bounding_box()
    page.tab.mouse.move(box["x"] + 250, box["y"] + 40, steps=3)
    page.tab.mouse.up()
    page.painted()
    assert at(page, 250) == pytest.approx(token, abs=0.3)  # it went along
    assert page.view("memory.selected") == chosen  # which no click was
    canvas.dblclick(position={"x": 100, "y": 40})
    page.painted()
    assert page.view(SHOWN) == before


@pytest.mark.slow
def test_two_fingers_zoom_about_the_point_between_them(phone):
    canvas = phone.tab.locator("#chat-view .layers")
    canvas.scroll_into_view_if_needed()
    box, before = canvas.bounding_box(), phone.view(SHOWN)["width"]
    token = at(phone, 150)
    touch = phone.tab.context.new_cdp_session(phone.tab)

    def fingers(kind, *places):
        points = [{"x": box["x"] + x, "y": box["y"] + 40, "id": i} for i, x in enumerate(places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", 130)
    fingers("touchStart", 130, 170)
    for apart in (30, 40, 50, 60):
        fingers("touchMove", 150 - apart, 150 + apart)
    fingers("touchEnd")
    phone.painted()
    assert phone.view(SHOWN)["width"] == pytest.approx(3 * before, rel=0.02)
    assert at(phone, 150) == pytest.approx(token, abs=0.8)  # each move is rounded to pixels


@pytest.mark.parametrize("zoom", [0, 0.3, 3.1])
def test_columns_are_sharp_on_every_screen(phone, zoom):
    phone.tab.evaluate(ZOOM, ["chat", zoom])
    phone.painted()
    for i, name in enumerate(("magnitude", "phase")):
        canvas = phone.tab.locator(f"#chat-view .{name}")
        with Image.open(BytesIO(canvas.screenshot())) as picture:
            pixels = np.asarray(picture.convert("RGB"))[30:-30, 30:-30].reshape(-1, 3)
        seen = {",".join(map(str, colour)) for colour in np.unique(pixels, axis=0)}
        held = phone.tab.evaluate(HELD, i)
        assert seen <= {*held, "255,255,255", "11,10,18"}, name  # the mark and the ground
        assert len(seen) > 5


def test_a_tip_stays_inside_a_phone(phone):
    canvas = phone.tab.locator("#chat-view .layers")
    for x in (4, 150, 298):
        canvas.hover(position={"x": x, "y": 60})
        box = phone.tab.locator("#chat-view .tip").bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844


def test_side_by_side_has_one_scale_and_one_token(seeded):
    page = seeded
    page.go_to("Side by side", "right")
    page.ask("both", "compare", "left")
    for side in ("left", "right"):
        page.finished(side)

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
        row = f"document.querySelector('#{side}-view .gl').view.row?.retention.length === 8"
        page.tab.wait_for_function(row)
