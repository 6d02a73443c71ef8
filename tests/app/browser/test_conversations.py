"""Conversations that are saved by themselves: the list, titles, a crash."""

import json
import time

import pytest
from helpers.browser import PATIENCE_MS, Server


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
    page.tab.locator("#delete").click()
    page.shows(0)
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('pears')")
    page.tab.locator("#undelete").click()
    page.shows(1)
    assert page.messages() == ["about pears"]
    saved.filter(has_text="about apples").filter(has_text="about pears").wait_for()
    page.list()
    page.tab.get_by_label("Clear").first.click()  # Gradio's Trash
    page.shows(0)
    page.list()
    saved.filter(has_text="about pears").wait_for()
    page.list()


@pytest.mark.slow
def test_an_export_is_downloaded_and_what_cannot_be_imported_is_said_in_the_list(page):
    page.set_tokens(8)
    page.answer("to be exported")
    page.list()
    box = page.tab.locator("#save-name :is(input, textarea)")
    box.fill("exported")
    box.press("Enter")
    page.tab.locator("#saved").get_by_text("exported", exact=True).wait_for()
    with page.tab.expect_download() as download:
        page.tab.locator("#export-json").click()
    text = download.value.path().read_text("utf-8")
    assert download.value.suggested_filename == "exported.json"
    page.list()
    page.take({"name": "<b>.json", "mimeType": "text/json", "buffer": b'[{"role": "robot"}]'})
    page.list()
    page.tab.locator("#kept-note").get_by_text("<b>.json: not imported: ").wait_for()
    page.list()
    assert page.messages() == ["to be exported"]
    assert json.loads(text)["messages"][0]["content"] == "to be exported"


@pytest.mark.slow
def test_a_killed_server_has_lost_nothing(endless_models, new_page, tmp_path):
    kept, asked = tmp_path / "kept", "while it writes"
    options = ("--models", endless_models, "--model", "a", "--conversations", kept)
    server = Server(tmp_path / "log", *options)
    page = new_page(server.url)
    page.set_tokens(8)
    page.answer("before the crash")
    page.set_tokens(1024)
    page.choose("slow")
    page.ask(asked)
    end = time.monotonic() + PATIENCE_MS / 1000
    while not any(asked.encode() in file.read_bytes() for file in kept.glob("*.safetensors")):
        assert time.monotonic() < end
    server.process.kill()
    server.process.wait()
    again = Server(tmp_path / "again", *options)
    other = new_page(again.url)
    other.list()
    other.tab.locator("#saved").get_by_text("before the crash", exact=True).click()
    other.shows(2)
    assert other.messages() == ["before the crash", asked]
    again.stop()
    for each in (page, other):
        each.tab.close()  # so that nothing is reported later
        each.problems.clear()  # the servers' ends are no problem
