"""The guided tour, as a visitor sees it who was never here."""

import json
import re

import pytest
from helpers.browser import ROOT, Page, new_context
from mlx_gateloop.app.page import scripts

RECORDED = json.loads((ROOT / "app/page/static/tour.json").read_text("utf-8"))
STEPS = 7
NUMBER = re.compile(r"-?\d+\.\d+")
OPEN = "document.querySelector('dialog.tour')?.open"
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


@pytest.fixture(scope="module")
def visitor(browser, server):
    context = new_context(browser, returning=False)
    yield Page(context, server.url)
    context.close()


@pytest.fixture
def tour(visitor):
    """The tour, opened by the button; nothing in it may be a problem for the page."""
    if not visitor.tab.evaluate(OPEN):
        visitor.tab.get_by_role("button", name="Guided tour", exact=True).click()
    yield visitor.tab.get_by_role("dialog")
    visitor.tab.keyboard.press("Escape")
    assert not visitor.problems


def title(tour):
    return tour.get_by_role("heading", level=2).inner_text()


def go_to(tour, step):
    tour.get_by_role("button", name=re.compile(f"^Step {step}: ")).click()


def test_it_starts_by_itself_once_and_can_be_skipped_at_every_step(visitor):
    dialog = visitor.tab.get_by_role("dialog")
    dialog.wait_for()
    seen = []
    for step in range(1, STEPS + 1):
        go_to(dialog, step)
        seen.append(title(dialog))
        assert f"{step} of {STEPS}" in dialog.inner_text()
        dialog.get_by_role("button", name="Skip").click()
        assert not visitor.tab.evaluate(OPEN)
        visitor.tab.get_by_role("button", name="Guided tour", exact=True).click()
    assert len(set(seen)) == STEPS
    visitor.reopen()
    visitor.tab.evaluate(f"import('{scripts.URL}/tour.js').then((m) => m.startOnce())")
    visitor.painted()
    assert not visitor.tab.evaluate(OPEN)
    assert not visitor.problems


def shown(tour, name):
    """The numbers of a row."""
    text = tour.locator(f"dl .{name} dd").inner_text()
    return [float(n) for n in NUMBER.findall(re.sub("\N{MINUS SIGN} ?", "-", text))]


def test_the_numbers_of_an_update_are_true_to_the_digits_shown(tour):
    go_to(tour, 1)
    words = tour.get_by_role("slider")
    told = []
    for place in range(int(words.get_attribute("max")) + 1):
        words.fill(str(place))
        before, kept, after = (complex(*shown(tour, n)) for n in ("before", "kept", "after"))
        a = complex(*shown(tour, "a")[:2])
        key, value, wrote = shown(tour, "wrote")
        assert abs(a * before - kept) < 0.01 + 1e-4 * abs(before)
        assert abs(key * value - wrote) < 0.01 + 5e-4 * (abs(key) + abs(value))
        assert abs(kept + wrote - after) < 0.02
        told.append(after)
    recorded = complex(*RECORDED["channel"]["h"][RECORDED["written"]])
    assert len(set(told)) == len(told) > 10
    assert min(abs(after - recorded) for after in told) < 0.01


def test_the_forgotten_word_and_the_fixed_model_are_the_recorded_ones(tour):
    go_to(tour, 6)
    original, other = RECORDED["answers"]
    texts = ["".join(text for text, _ in side) for side in (original, other)]
    assert tour.locator(".reply").all_inner_texts() == texts
    for tag, side in (("del", original), ("ins", other)):
        marked = tour.locator(f".reply {tag}").all_inner_texts()
        assert marked == [text for text, same in side if not same]
    go_to(tour, 7)
    lab = RECORDED["lab"]
    wrong = [a != r for a, r in zip(lab["models"][1]["answers"], lab["right"], strict=True)]
    assert any(wrong)
    assert lab["models"][0]["answers"] == lab["right"]
    cells = tour.locator(".cell .answer:last-child").evaluate_all(
        "all => all.map((e) => e.classList.contains('wrong'))"
    )
    assert cells == wrong
    assert tour.locator(".cell .answer:nth-child(2).wrong").count() == 0


def test_keys_move_and_leave_and_focus_stays_inside(visitor, tour):
    keyboard = visitor.tab.keyboard
    first = title(tour)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        before = title(tour)
        keyboard.press(key)
        assert (title(tour) == before) == (before == first and key == "ArrowLeft")
    assert title(tour) == first
    for _ in range(16):
        keyboard.press("Tab")
        assert visitor.tab.evaluate(INSIDE)
    words = tour.get_by_role("slider")
    words.focus()
    chosen = words.input_value()
    keyboard.press("ArrowRight")  # the slider's own
    assert (words.input_value(), title(tour)) == (str(int(chosen) + 1), first)
    assert tour.get_by_role("img").count() == 1
    keyboard.press("Escape")
    assert not visitor.tab.evaluate(OPEN)
    button = visitor.tab.get_by_role("button", name="Guided tour", exact=True)
    button.focus()
    keyboard.press("Enter")
    tour.wait_for()
    for _ in range(STEPS):
        keyboard.press("Enter")  # Next, where it begins
    assert not visitor.tab.evaluate(OPEN)
    assert button.evaluate("(e) => e === document.activeElement")


def test_it_fits_a_phone_and_moves_only_where_motion_is_wanted(visitor, tour):
    picture = tour.get_by_role("img").first
    for motion, name in (("reduce", "none"), ("no-preference", "tour-in")):
        visitor.tab.emulate_media(reduced_motion=motion)
        go_to(tour, 5)
        assert picture.evaluate("(e) => getComputedStyle(e).animationName") == name
    before = visitor.tab.viewport_size
    visitor.tab.set_viewport_size({"width": 360, "height": 640})
    for step in range(1, STEPS + 1):
        go_to(tour, step)
        wide, room = tour.evaluate("(e) => [e.scrollWidth, e.clientWidth]")
        assert wide <= room <= 360
        box = tour.get_by_role("button", name=re.compile("Next|Start")).bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] <= 640
    visitor.tab.set_viewport_size(before)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_browser_that_keeps_nothing_is_not_shown_it_each_time(visitor, storage):
    visitor.tab.keyboard.press("Escape")
    arguments = [f"{scripts.URL}/tour.js", STORAGES[storage]]
    assert not visitor.tab.evaluate(STARTED, arguments)
    assert not visitor.problems
