"""A conversation that is changed, stopped, left and gone on with."""

import pytest
from helpers.browser import has, view

SPECIAL = '<b> & "x" ${1} &lt; `y`'
PLACED = """() => {
  const { words, text } = document.querySelector('#chat-words .gw').words;
  const shown = words.filter((w) => w.message > 0 && text.shows(w));
  return shown.length > 0 && shown.every((w) => String(text.range(w)) === w.text);
}"""
ON_TOP = """() => {
  const element = document.querySelector('#chat [data-testid=user] .chatbot');
  const box = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(box.x + 5, box.y + 5));
}"""


def test_stop_keeps_the_text_and_a_new_conversation_during_a_run_nothing(page):
    page.set_tokens(1024)
    page.choose("slow")
    page.ask("a long one")
    page.tab.wait_for_function(has(21))
    box = page.tab.locator("#chat-box textarea")
    box.press_sequentially("next")
    assert not page.view("recording.done")
    page.tab.locator("#chat-stop").click()
    assert 20 < page.finished() < 1024
    assert "stopped" in page.tab.locator("#chat-status").inner_text()
    assert page.messages("bot")[0]
    assert box.input_value() == "next"
    page.ask("another long one")
    page.tab.wait_for_function(has(21))
    page.tab.locator("#clear").click()
    page.shows(0)
    page.choose("b", "fixed transitions")  # all that was sent before is shown by then
    assert page.messages() == page.messages("bot") == []
    assert page.view("run") is None
    assert page.view("pieces") == []
    assert page.tab.locator("#chat-status").inner_text().strip() == "ready"
    page.set_tokens(8)
    page.answer("from the start")
    assert page.messages() == ["from the start"]
    assert page.tab.locator("#chat-view .model").inner_text() == "b"


@pytest.mark.slow
def test_retry_versions_and_undo_go_back(page):
    tokens, run = page.answer("one"), page.view("run")
    page.answer("two < three")
    first, last = page.messages("bot")
    before, older = page.view("run"), page.tab.get_by_role("button", name="Older version")
    assert not older.is_visible()
    page.tab.get_by_label("Retry").last.click()
    page.begun(before)
    page.finished()
    again = page.messages("bot")
    assert (again[0], again[1] != last) == (first, True)
    status = page.tab.locator("#chat-status")
    assert "version 2 of 2" in status.inner_text()
    assert "read 1 of" in status.inner_text()  # the state before the answer was kept
    older.click()
    status.get_by_text("version 1 of 2").wait_for()
    page.settled()
    assert page.messages("bot") == [first, last]
    assert page.view("run") == before  # the view goes back, too
    page.tab.get_by_role("button", name="Newer version").click()
    status.get_by_text("version 2 of 2").wait_for()
    page.settled()
    assert page.messages("bot") == again
    page.tab.get_by_label("Undo").last.click()
    page.shows(1)
    assert page.messages("bot") == [first]
    assert page.tab.locator("#chat-box textarea").input_value() == "two < three"
    page.tab.wait_for_function(f"n => {view()}.pieces.length === n", arg=tokens)
    assert page.view("run") == run  # the view goes back too


@pytest.mark.slow
def test_an_edited_message_is_sent_by_enter_and_shown_as_it_was_typed(page):
    for text in (SPECIAL, "  if x:\n      y\n\n    z  "):
        page.answer(text)
    assert page.messages() == [SPECIAL, "  if x:\n      y\n\n    z  "]
    before, box = page.view("run"), page.tab.locator("#chat textarea")
    for key in ("Escape", "Enter"):
        page.tab.get_by_label("Edit").first.click()
        assert box.input_value() == SPECIAL
        page.tab.wait_for_function(PLACED)  # though the box takes the place of a message
        box.fill(f"{SPECIAL}&amp;</b>")
        box.press(key)
        box.wait_for(state="detached")
        assert page.tab.evaluate("!!document.activeElement.closest('#chat-box')")
    page.begun(before)
    page.finished()
    assert page.messages() == [f"{SPECIAL}&amp;</b>"]  # what came later is gone
    assert f"{SPECIAL}&amp;</b>" in "".join(piece["text"] for piece in page.view("pieces"))


def test_a_refusal_hides_nothing_and_says_why(page):
    page.answer("the question")
    run, box = page.view("run"), page.tab.locator("#chat-box textarea")
    box.fill("x" * 20_000)
    box.press("Enter")
    page.tab.locator("#chat-status").get_by_text("characters, at most").wait_for()
    page.tab.wait_for_timeout(300)  # Gradio's veil comes with the notice
    assert page.tab.evaluate(ON_TOP)
    assert page.view("run") == run
    assert len(box.input_value()) == 20_000  # nothing was cut
    box.fill("x" * 10**6)  # more than a request may have
    box.press("Enter")
    page.tab.locator("#chat-words .status").get_by_text("Not sent: the message is too").wait_for()
    page.tab.wait_for_timeout(300)
    assert len(box.input_value()) == 10**6
    box.fill("")
    page.tab.evaluate("scrollTo(0, 0)")
    assert page.tab.evaluate(ON_TOP)
    page.problems.clear()  # the browser reports the refusal,
    page._events = False  # which has no end to wait for
