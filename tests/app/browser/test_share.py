"""A view saved as one file: it opens without the server, and holds what was seen."""

import json
import re

import pytest
from helpers.browser import QUESTIONS, new_context

from .test_words import click_word, forget, settled

pytestmark = pytest.mark.slow
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e &amp; ${alert(2)} {{value}} <|im_end|> hi"


def words_of(page):
    return "".join(json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["texts"])


def test_a_shared_view_opens_from_a_file_without_a_network(page, download, browser):
    for part in ("save-page", "with-system"):  # an empty chat has nothing to share
        assert page.tab.locator(f"#chat-view .{part}").is_hidden()
    page.set("#system textarea", "a hidden instruction")
    page.ask(HOSTILE)
    settled(page)
    assert page.messages() == [HOSTILE]
    click_word(page, 0, "hi")
    page.tab.locator("#words-bar .message").click()
    name = page.tab.locator("#words-bar .chosen").inner_text()
    assert name.startswith("“</script><img src=x onerror=")
    assert "\u202e" not in name
    page.tab.locator("#words-bar .close").click()
    click_word(page, 0, "hi")
    forget(page)
    assert page.tab.locator("#chat-words img, #chat img, #chat-view img").count() == 0
    file = download(page, "save-page")
    assert page.tab.locator("#chat-view .saved").inner_text().startswith(f"Saved {file.name}")
    assert file.name.startswith("a-script-img-src-x")
    text = file.read_text("utf-8")
    assert len(text) < 300_000
    assert not re.search("im_start|/tmp|/root|/home|http:|https:", text)
    assert "a hidden instruction" not in words_of(text)
    with_system = page.tab.locator("#chat-view .with-system input")
    with_system.check()
    assert "a hidden instruction" in words_of(download(page, "save-page").read_text("utf-8"))
    with_system.uncheck()
    page.set("#system textarea", "")
    file.write_text(text, "utf-8")
    context = new_context(browser)
    context.set_offline(True)
    tab, problems = context.new_page(), []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("request", lambda request: problems.append(request.url))
    tab.goto(file.as_uri())
    assert tab.inner_text(".words").replace("\n", "").startswith("</script><img src=x")
    assert "".join(tab.locator(".words .forgotten").all_inner_texts()).strip() == "hi"
    tab.locator(".choices button").click()
    tab.wait_for_function("() => !document.querySelector('.waiting')")
    assert tab.locator(".without span").count() == page.tokens
    assert problems == [file.as_uri()]
    context.close()


def test_the_view_says_so_where_a_server_has_no_such_answer(page):
    page.answer("gone")
    page.tab.route(QUESTIONS, lambda it: it.fulfill(content_type="application/json", body="null"))
    page.tab.locator("#chat-view .save-page").click()
    page.tab.locator("#chat-view .saved").get_by_text("no longer has this answer").wait_for()
