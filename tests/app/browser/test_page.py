"""Tabs, users and looks, in the real app."""

import pytest
from helpers.browser import has, view
from mlx_gateloop.app.page.examples import TEXT_EXAMPLES

pytestmark = pytest.mark.slow
DARK = (
    "Math.max(...getComputedStyle(document.querySelector('gradio-app'))"
    ".backgroundColor.match(/\\d+/g)) < 64"
)
WHERE = "'#' + document.activeElement.closest('[id^=chat-box], #settings')?.id"


def test_completion_goes_on_in_its_box_and_a_reload_keeps_it(page):
    page.go_to("Completion", "complete")
    box = page.tab.locator("#complete-box textarea")
    filled = "document.querySelector('#complete-box textarea')"
    name, text = [*TEXT_EXAMPLES.items()][-1]
    page.tab.get_by_role("button", name=name).click()
    page.tab.wait_for_function(f"(text) => {filled}.value === text", arg=text)
    beginning = "Once upon\n" * 40
    assert page.answer(beginning, "complete") == page.tokens + len(beginning)
    once = box.input_value()
    assert once.startswith(beginning)
    assert len(once) > len(beginning)
    assert "at the limit" in page.tab.locator("#complete-status").inner_text()
    end = f"{filled}.scrollTop + {filled}.clientHeight > {filled}.scrollHeight - 9"
    page.tab.wait_for_function(end)
    before = page.view("run", "complete")
    page.tab.locator("#complete-box").get_by_role("button", name="Continue").click()
    page.begun(before, "complete")
    page.finished("complete")
    whole = box.input_value()
    assert whole.startswith(once)
    assert len(whole) > len(once)
    assert page.tab.locator("#next-words li").count() == 8
    shares = "[...document.querySelectorAll('#next-words i')].map((bar) => bar.style.width).join()"
    last = page.view("pieces.length", "complete")  # the words after it come with its row
    page.tab.wait_for_function(f"{view('complete')}.memory.row?.retention.length === {last}")
    warm = page.tab.evaluate(shares)
    slider = page.tab.locator("#temperature-here input[type=number]")
    slider.fill("2")
    page.tab.wait_for_function(f"{shares} !== '{warm}'")
    slider.fill("0.7")
    page.tab.wait_for_function(f"{shares} === '{warm}'")
    text = box.input_value()
    page.reopen()
    page.tab.wait_for_function(f"text => {filled}.value === text", arg=text)
    assert box.is_visible()  # in the same tab


def test_a_reload_keeps_what_a_tab_has_and_a_closed_tab_ends_its_run(page, new_page):
    page.set("#system textarea", "Be brief.")
    page.set_tokens(1024)
    page.choose("slow")
    page.tab.locator("#dark").click()
    page.ask("before the reload")
    page.tab.locator("#words-fade input").uncheck()
    page.tab.wait_for_function(has(100))
    run = page.view("run")
    page.tab.locator("#chat-box textarea").fill("a draft")
    page.tab.wait_for_function("sessionStorage.getItem('gateloop.settings').includes('a draft')")
    page.reopen()
    page.shows(1)
    assert page.finished() < 1024
    assert page.messages("bot")[0]
    assert page.view("run") == run
    assert page.tab.evaluate(DARK)
    assert page.tab.locator("#system textarea").input_value() == "Be brief."
    assert page.tab.locator("#chat-box textarea").input_value() == "a draft"
    assert not page.tab.locator("#words-fade input").is_checked()
    other = new_page(context=page.tab.context)  # nobody's chat is shown to another tab
    assert other.messages() == []
    assert other.tab.locator("#system textarea").input_value() == ""
    assert other.tab.evaluate(DARK)
    other.set_tokens(1024)
    other.choose("slow")
    other.ask("long")
    run = other.view("run")
    other.tab.close()
    while not (answer := page.view(f"server.updates_since(['{run}', 0, 0, 0])"))["done"]:
        assert len(answer["pieces"]) < 1024
        page.tab.wait_for_timeout(100)
    page.reload()


def test_tab_reaches_what_is_in_sight(page):
    page.tab.locator("#model input").focus()
    reached = []
    for _ in range(30):
        page.tab.keyboard.press("Tab")
        reached.append(page.tab.evaluate(WHERE))
    assert "#chat-box" in reached
    assert "#settings" not in reached
    page.settings()
    page.tab.locator("#settings textarea").first.focus()
    assert page.tab.evaluate(WHERE) == "#settings"
    page.settings()
