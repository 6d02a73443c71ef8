"""An answer's end: its reason, Continue, copies, Markdown; one current word in chat and panel."""

import json

import pytest
from mlx_gateloop.app.page import scripts

from .test_words import WORDS, click_word, forget, painted, status, until

pytestmark = pytest.mark.slow
STOP = "#stop-text :is(textarea, input)"
COPIED = "() => navigator.clipboard.readText()"
MARKDOWN = """say `x < 1`, **bold**
```python
if x < 1:
    print('<b>')
```
![a](http://example.com/x.png) <img src=http://example.com/y.png onerror=alert(1)>
[click](javascript:alert(1)) <script>alert(2)</script> <style>body{display:none}</style>
# <form action=http://example.com><input name=p></form>
> <iframe src=http://a>"""


def test_an_answer_says_why_it_ended_and_goes_on(seeded):
    page = seeded
    more = page.tab.locator("#chat-continue")
    assert not more.is_visible()
    page.set_tokens(10)
    page.answer("one")
    assert "stopped at the limit of 10 tokens" in page.tab.locator("#chat-status").inner_text()
    (begun,), run = page.messages("bot"), page.view("run")
    more.click()
    page.begun(run)
    page.finished()
    (longer,) = page.messages("bot")
    assert longer.startswith(begun.rstrip("\ufffd"))
    assert len(longer) > len(begun)
    assert "at the limit of 20 tokens" in page.tab.locator("#chat-status").inner_text()
    page.set_tokens(20)
    stop = next(letter for letter in longer[1:] if letter.isascii() and letter.isprintable())
    page.set(STOP, stop)
    page.still()  # the button moves while the settings close
    page.tab.get_by_label("Retry").last.click()
    page.tab.locator("#chat-status").get_by_text("stopped at the stop text").wait_for()
    page.settled()
    (cut,) = page.messages("bot")
    assert longer.startswith(cut)
    assert stop in cut != longer
    page.set(STOP, "")


def test_markdown_is_styled_copied_as_it_is_and_never_loads_anything(new_page):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARKDOWN}]
    page.list()
    page.take({"name": "a.json", "mimeType": "text/json", "buffer": json.dumps(messages).encode()})
    page.list()
    page.shows(1)
    assert page.messages("bot") == [MARKDOWN]
    assert page.tab.locator("#chat .chatbot :is(img, script, style, form, input, a)").count() == 0
    assert page.tab.locator("#chat code").all_inner_texts()[0] == "x < 1"
    assert page.tab.locator("#chat .mark").first.bounding_box()["width"] == 0
    page.tab.locator("#chat [data-testid=bot]").hover()
    for title, text in (
        ("Copy the answer", MARKDOWN),
        ("Copy the code", "if x < 1:\n    print('<b>')"),
    ):
        page.tab.get_by_title(title).click()
        page.tab.wait_for_function(f"text => ({COPIED})().then(copy => copy === text)", arg=text)


def test_chat_and_panel_have_one_current_word(answered):
    page = answered
    click_word(page, 0, "state")
    token = page.chosen()
    assert page.tab.evaluate(f"{WORDS}.words[{WORDS}.choice.first].stop - 1") == token
    spans = page.tab.locator("#chat-view .text span")
    spans.nth(token - 2).click()
    page.tab.wait_for_function(f"{WORDS}.choice.stop <= {token - 1}")
    assert painted(page, "chosen") != {"0": ["state"]}
    assert page.chosen() == token - 2
    page.tab.locator("#words-bar .close").click()
    until(page, f"{WORDS}.choice === null")
    assert page.chosen() == page.view("pieces.length") - 1  # the panel is at the end again
    spans.nth(token).click()
    assert painted(page, "chosen") == {"0": ["state"]}
    spans.nth(page.view("pieces.length") - 1).dispatch_event("click")  # a newline has no width
    assert painted(page, "chosen") == {}


def test_grey_buttons_say_why_and_the_box_stays_in_sight(answered):
    page = answered
    page.tab.set_viewport_size({"width": 1280, "height": 650})
    click_word(page, 1, page.tab.evaluate(f"{WORDS}.words.find(w => w.message === 1).text"))
    assert page.tab.locator("#words-forget").is_disabled()
    assert "before the last answer" in status(page)
    page.tab.locator("#words-bar .message").click()
    assert page.tab.locator("#words-depends").is_disabled()
    assert "choose one word" in status(page)
    click_word(page, 0, "state")
    forget(page)
    box = page.tab.locator("#chat-box").bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 650
    page.tab.locator("#words-undo").click()


def test_a_conversation_speaks_as_a_tuned_state(seeded, endless_models, tmp_path):
    page = seeded
    (tmp_path / "bad.state").write_bytes(b"no state" * 9)
    picker = page.tab.locator("#chat-states")
    picker.get_by_role("button", name="Speaks as").click()
    picker.locator("input[type=file]").wait_for(state="attached")
    page.tab.evaluate(scripts.call("state_drop", "attach.toString"))  # imported, it listens

    def drop(name, line):
        folder = endless_models if name == "calm.state" else tmp_path
        picker.locator("input[type=file]").set_input_files(folder / name)
        picker.get_by_role("status").filter(has_text=line).wait_for()

    def pick(name):
        picker.get_by_label("State", exact=True).click()
        page.tab.get_by_role("option", name=name, exact=True).click()

    pick("calm.state")
    picker.get_by_role("status").filter(has_text="calm.state: a tuned state").wait_for()
    page.answer("listed words")
    page.tab.locator("#chat-status").get_by_text("speaks as calm.state").wait_for()
    drop("calm.state", "calm.state: a tuned state")
    pick("None")
    picker.get_by_role("status").wait_for(state="hidden")
    drop("calm.state", "calm.state: a tuned state")
    page.answer("calm words")
    speaks = page.tab.locator("#chat-status").get_by_text("speaks as calm.state")
    speaks.wait_for()
    drop("bad.state", "bad.state: not a state of gateloop read")
    page.answer("two")
    assert not speaks.is_visible()
    drop("calm.state", "calm.state: a tuned state")
    page.choose("b")  # whose state has other weights
    picker.get_by_role("status").wait_for(state="hidden")
