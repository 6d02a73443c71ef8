"""The guided tour, and the first minute of a new user: docs/first_minute.py times it."""

import json
import re

import pytest
from helpers.browser import ROOT, Page, new_context
from helpers.scripts import load_script
from mlx_gateloop.app.page import scripts

pytestmark = pytest.mark.slow
RECORDED = json.loads((ROOT / "app/page/static/tour.json").read_text("utf-8"))
STEPS = 4
OPEN = "document.querySelector('dialog.tour')?.open"
MODULE = f"{scripts.URL}/tour.js"
# Tab may leave for the browser's own buttons, of which a headless one has none.
INSIDE = """document.activeElement === document.body ||
  document.querySelector('dialog.tour').contains(document.activeElement)"""
STORAGES = {
    "hostile": "(name) => '<img src=x onerror=alert(1)>'",
    "absent": "() => { throw new DOMException('denied', 'SecurityError'); }",
    "full": "() => null",
}
# Starts the tour as the page does, with another storage; True if it is shown.
STARTED = """async ([module, getItem]) => {
  const { getItem: get, setItem: set } = Storage.prototype;
  Storage.prototype.getItem = eval(getItem);
  Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };
  (await import(module)).startOnce();
  await new Promise((done) => setTimeout(done, 100));
  Object.assign(Storage.prototype, { getItem: get, setItem: set });
  return document.querySelector('dialog.tour').open;
}"""


def test_four_clicks_from_the_tour_to_a_word_that_is_forgotten_and_proven(browser, server):
    context = new_context(browser, returning=False)
    script = load_script("docs/first_minute.py")
    visitor = script.FirstMinute(Page(context, server.url))
    visitor.skip_the_tour()
    assert visitor.tab.evaluate(f"import('{MODULE}').then((m) => m.startOnce())") is None
    visitor.page.painted()
    assert not visitor.tab.evaluate(OPEN)  # it starts once
    visitor.page.choose("demo")  # make demo begins with it, this server with another
    visitor.ask()
    _, before, after = visitor.forget()
    assert script.WORD in before
    assert script.WORD not in after
    assert visitor.clicks == script.MAX_CLICKS
    assert not visitor.page.problems
    context.close()


@pytest.fixture
def tour(tab):
    tab.defaults()
    tab.tab.get_by_role("button", name="Guided tour", exact=True).click()
    yield tab.tab.get_by_role("dialog")
    tab.tab.keyboard.press("Escape")


def title(tour):
    return tour.get_by_role("heading", level=2).inner_text()


def go_to(tour, step):
    tour.get_by_role("button", name=re.compile(f"^Step {step}: ")).click()


def test_the_forgotten_word_and_the_fixed_model_are_the_recorded_ones(tour):
    go_to(tour, 1)
    original, other = RECORDED["answers"]
    texts = ["".join(text for text, _ in side) for side in (original, other)]
    assert tour.locator(".reply").all_inner_texts() == texts
    for tag, side in (("del", original), ("ins", other)):
        marked = tour.locator(f".reply {tag}").all_inner_texts()
        assert marked == [text for text, same in side if not same]
    go_to(tour, STEPS)
    lab = RECORDED["lab"]
    wrong = [a != r for a, r in zip(lab["models"][1]["answers"], lab["right"], strict=True)]
    assert any(wrong)
    assert lab["models"][0]["answers"] == lab["right"]
    cells = tour.locator(".cell .answer:last-child").evaluate_all(
        "all => all.map((e) => e.classList.contains('wrong'))"
    )
    assert cells == wrong
    assert tour.locator(".cell .answer:nth-child(2).wrong").count() == 0


def test_keys_move_and_leave_and_focus_stays_inside(tab, tour):
    keyboard = tab.tab.keyboard
    first = title(tour)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        before = title(tour)
        keyboard.press(key)
        assert (title(tour) == before) == (before == first and key == "ArrowLeft")
    assert title(tour) == first
    for _ in range(16):
        keyboard.press("Tab")
        assert tab.tab.evaluate(INSIDE)
    keyboard.press("Escape")
    assert not tab.tab.evaluate(OPEN)
    button = tab.tab.get_by_role("button", name="Guided tour", exact=True)
    button.focus()
    keyboard.press("Enter")
    tour.wait_for()
    for _ in range(STEPS):
        keyboard.press("Enter")  # Next, where it begins
    assert not tab.tab.evaluate(OPEN)
    assert button.evaluate("(e) => e === document.activeElement")


def test_it_fits_a_phone_and_moves_only_where_motion_is_wanted(tab, tour):
    picture = tour.get_by_role("img").first
    for motion, name in (("reduce", "none"), ("no-preference", "tour-in")):
        tab.tab.emulate_media(reduced_motion=motion)
        go_to(tour, 2)
        assert picture.evaluate("(e) => getComputedStyle(e).animationName") == name
    tab.tab.set_viewport_size({"width": 360, "height": 640})
    titles = set()
    for step in range(1, STEPS + 1):
        go_to(tour, step)
        titles.add(title(tour))
        assert f"{step} of {STEPS}" in tour.inner_text()
        wide, seen = tour.evaluate("(e) => [e.scrollWidth, e.clientWidth]")
        assert wide <= seen <= 360
        box = tour.get_by_role("button", name=re.compile("Next|Start")).bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] <= 640
    assert len(titles) == STEPS


@pytest.mark.parametrize("storage", STORAGES)
def test_a_browser_that_keeps_nothing_is_not_shown_it_each_time(tab, storage):
    assert not tab.tab.evaluate(STARTED, [MODULE, STORAGES[storage]])
