"""Conversations that are saved by themselves: the list and titles."""

import json

import pytest

pytestmark = pytest.mark.slow


def test_a_new_conversation_and_trash_lose_nothing(page):
    page.set_tokens(8)
    page.answer("about apples")
    page.tab.locator("#clear").click()
    page.shows(0)
    page.answer("about pears")
    saved = page.tab.locator("#saved")
    page.list()
    saved.filter(has_text="about apples").filter(has_text="about pears").wait_for()
    page.tab.locator("#search :is(input, textarea)").fill("APPLES")
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('pears')")
    page.tab.locator("#search :is(input, textarea)").fill("")
    saved.filter(has_text="about apples").filter(has_text="about pears").wait_for()
    page.tab.locator("#search :is(input, textarea)").fill("about p")
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('apples')")
    page.tab.locator("#delete").click()
    page.shows(0)
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('about')")
    page.tab.locator("#search :is(input, textarea)").fill("")
    saved.filter(has_text="about apples").wait_for()
    page.tab.locator("#undelete").click()
    page.shows(1)
    assert page.messages() == ["about pears"]
    saved.filter(has_text="about apples").filter(has_text="about pears").wait_for()
    page.list()
    page.tab.get_by_label("Clear").first.click()  # Gradio's Trash
    page.shows(0)
    page.list()
    saved.filter(has_text="about pears").wait_for()
    page.tab.locator("#search :is(input, textarea)").press("Escape")
    page.tab.locator("body:has(#list-button:focus):has(#conversations:not(.open))").wait_for()


def test_an_export_is_downloaded_and_what_cannot_be_imported_is_said_in_the_list(page):
    page.set_tokens(8)
    page.answer("to be exported")
    page.list()
    with page.tab.expect_download() as download:
        page.tab.locator("#export-json").click()
    text = download.value.path().read_text("utf-8")
    assert download.value.suggested_filename == "to be exported.json"
    page.take({"name": "<b>.json", "mimeType": "text/json", "buffer": b'[{"role": "robot"}]'})
    page.tab.locator("#kept-note").get_by_text("<b>.json: not imported: ").wait_for()
    page.list()
    assert page.messages() == ["to be exported"]
    assert json.loads(text)["messages"][0]["content"] == "to be exported"
