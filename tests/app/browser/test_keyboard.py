"""The page by keyboard alone, and by screen reader: axe-core finds nothing serious."""

import pytest
from helpers.browser import MOVING, ROOT
from helpers.cases import first

from .test_answers import COPIED

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
FOCUSED = "document.activeElement"
SERIOUS = """async () => {
  // Gradio's list of examples holds buttons, not items.
  const where = { exclude: [['#chat .examples']] };
  const { violations } = await axe.run(where, { resultTypes: ['violations'] });
  return violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 200)).join(' | ')}`);
}"""


def press_until(page, key, selector):
    for _ in range(40):
        page.tab.keyboard.press(key)
        if page.tab.evaluate(f"{FOCUSED}.matches({selector!r})"):
            return
    raise AssertionError(f"{selector} is not reached")


@pytest.mark.slow
def test_a_question_continue_copy_rename_delete_and_undo_by_keyboard_alone(new_page):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.set_tokens(12)
    page.set("#seed input", 7)  # a clipboard changes some control characters
    page.reopen()
    page.tab.wait_for_function(f"{FOCUSED}.closest('#chat-box')")  # where a new page begins
    page.tab.keyboard.type("my own question")
    page.tab.keyboard.press("Enter")
    page.begun(None)
    page.finished()
    assert page.tab.evaluate(f"!!{FOCUSED}.closest('#chat-box')")
    run = page.view("run")
    press_until(page, "Tab", "#chat-continue")
    page.tab.keyboard.press("Enter")
    page.begun(run)
    page.finished()
    page.tab.locator("#chat-box textarea").focus()
    press_until(page, "Shift+Tab", "[title='Copy the answer']")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_timeout(100)
    trimmed = page.tab.evaluate("(text) => text.trim()", page.messages("bot")[0])
    assert page.tab.evaluate(COPIED) == trimmed  # Python strips more characters
    page.tab.locator("#list-button").focus()
    page.tab.keyboard.press("Enter")
    press_until(page, "Tab", "#save-name :is(input, textarea)")
    page.tab.keyboard.press("Control+a")
    page.tab.keyboard.type("by keyboard")
    page.tab.keyboard.press("Enter")
    page.tab.locator("#saved").get_by_text("by keyboard", exact=True).wait_for()
    press_until(page, "Tab", "#delete")
    page.tab.keyboard.press("Enter")
    page.tab.get_by_text("Deleted: by keyboard.").wait_for()
    page.tab.locator("#undelete").wait_for()
    press_until(page, "Tab", "#undelete")
    page.tab.keyboard.press("Enter")
    page.shows(1)
    assert page.messages() == ["my own question"]


@pytest.mark.parametrize(
    "state", first(1, ["answer", "first", "settings", "Completion", "Memory lab"])
)
def test_axe_finds_nothing_serious(page, state):
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make node_modules/installed")
    if state == "answer":
        page.set_tokens(8)
        page.answer("hello")
    elif state == "settings":
        page.settings()
        page.list()
    elif state != "first":
        page.tab.get_by_role("tab", name=state).click()
    page.tab.evaluate(AXE.read_text("utf-8"))
    found = []
    page.tab.mouse.move(0, 0)
    page.still()
    for dark in ("true", "false"):
        found += page.tab.evaluate(SERIOUS)
        page.tab.evaluate("document.querySelector('#dark').click()")
        page.tab.wait_for_function(f"document.body.matches('.dark') === {dark}")  # Gradio is slow
        assert page.tab.evaluate(f"{MOVING}.length") == 0
    if state == "settings":
        page.settings()
        page.list()
    assert found == []
