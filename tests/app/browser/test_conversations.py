"""Conversations that are saved by themselves: the list, titles, branches, two tabs, a crash."""

import json
import time

import pytest
from helpers.browser import PATIENCE_MS, Server

WRONG = json.dumps([{"role": "robot", "content": "x"}]).encode()


def titles(page):
    """Return the titles in the open list."""
    return page.tab.locator("#saved tbody tr").all_inner_texts()


def wait_for(page, *names):
    page.tab.wait_for_function(
        "names => names.every(name => document.querySelector('#saved').innerText.includes(name))",
        arg=list(names),
    )


def test_a_new_conversation_and_trash_lose_nothing(page):
    page.set_tokens(8)
    page.answer("about apples")
    page.tab.locator("#clear").click()
    page.shows(0)
    page.answer("about pears")
    page.list()
    wait_for(page, "about apples", "about pears")
    page.tab.locator("#search :is(input, textarea)").fill("APPLES")
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('pears')")
    page.tab.locator("#search :is(input, textarea)").fill("")
    wait_for(page, "about apples", "about pears")
    page.tab.locator("#delete").click()
    page.shows(0)
    page.tab.wait_for_function("!document.querySelector('#saved').innerText.includes('pears')")
    page.tab.locator("#undelete").click()
    page.shows(1)
    assert page.messages() == ["about pears"]
    wait_for(page, "about apples", "about pears")
    page.list()
    page.tab.get_by_label("Clear").first.click()  # Gradio's Trash
    page.shows(0)
    page.list()
    wait_for(page, "about pears")
    page.list()


def test_a_retry_and_an_edit_leave_branches(page):
    page.set_tokens(8)
    page.answer("one")
    (first,) = page.messages("bot")
    assert not page.tab.get_by_role("button", name="Older version").is_visible()
    run = page.view("run")
    page.tab.get_by_label("Retry").last.click()
    page.begun(run)
    page.finished()
    (second,) = page.messages("bot")
    assert "version 2 of 2" in page.tab.locator("#chat-status").inner_text()
    page.tab.get_by_role("button", name="Older version").click()
    page.tab.locator("#chat-status").get_by_text("version 1 of 2").wait_for()
    page.settled()
    assert page.messages("bot") == [first]
    assert page.view("run") == run  # the view goes back, too
    page.tab.get_by_role("button", name="Newer version").click()
    page.tab.locator("#chat-status").get_by_text("version 2 of 2").wait_for()
    assert page.messages("bot") == [second]


@pytest.mark.slow
def test_what_cannot_be_imported_is_said_in_the_list_and_an_export_can(page):
    page.set_tokens(8)
    page.answer("to be exported")
    page.name("exported")
    page.list()
    with page.tab.expect_download() as download:
        page.tab.locator("#export-json").click()
    text = download.value.path().read_text("utf-8")
    assert download.value.suggested_filename == "exported.json"
    page.list()
    for content, line in ((WRONG, "<b>.json: not imported: "), (b"x" * 10**6, "more than 200,000")):
        page.take({"name": "<b>.json", "mimeType": "text/json", "buffer": content})
        page.list()
        page.tab.locator("#kept-note").get_by_text(line).wait_for()
        page.list()
        assert page.messages() == ["to be exported"]
    answer = page.messages("bot")
    page.tab.locator("#clear").click()
    page.shows(0)
    page.take({"name": "x.json", "mimeType": "text/json", "buffer": text.encode()})
    page.shows(1)
    assert page.messages("bot") == answer


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
    other.open_saved("before the crash")
    other.shows(2)
    assert other.messages() == ["before the crash", asked]
    again.stop()
    for each in (page, other):
        each.tab.close()  # so that nothing is reported later
        each.problems.clear()  # the servers' ends are no problem
