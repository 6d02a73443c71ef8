"""Words that fade, an answer without some of them, and what one depended on."""

import pytest
from helpers.browser import view

from .conftest import SEED

WORDS = "document.querySelector('#chat-words .gw').words"
SHOWS_ANSWER = f"!document.querySelector('#words-result').hidden && !{WORDS}.counterfactual.running"
GROUND = "e => Number(getComputedStyle(e).backgroundColor.match(/[\\d.]+/g)[3] ?? 1)"  # opacity


def painted(page, kind):
    """The painted texts of a kind, by level."""
    return page.tab.evaluate(
        "kind => Object.fromEntries([...CSS.highlights].filter(([name]) => name.startsWith(kind))"
        ".map(([name, ranges]) => [name.slice(kind.length), [...ranges].map(String)]))",
        f"gw-{kind}-",
    )


def until(page, condition):
    page.tab.wait_for_function(condition)


def status(page):
    return page.tab.locator("#chat-words .status").inner_text()


def settled(page):
    """Wait until the words of a finished answer are all there."""
    page.finished()
    until(page, f"{WORDS}.done")


def click_word(page, message, text):
    box = page.tab.evaluate(
        f"([message, text]) => {{ const words = {WORDS};"
        "const found = words.words.find(w => w.message === message && w.text === text);"
        "const range = words.text.range(found);"
        "range.startContainer.parentElement.scrollIntoView(); words.text.show(range);"
        "const box = range.getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; }",
        [message, text],
    )
    page.tab.mouse.click(*box)
    until(page, f"{WORDS}.choice !== null")


def forget(page):
    """Forget the chosen words, and wait for the end of the answer without them."""
    page.tab.locator("#words-forget").click()
    until(page, SHOWS_ANSWER)


@pytest.mark.slow
def test_words_fade_while_they_stream(page):
    page.set_tokens(1024)
    page.choose("slow")
    page.ask("What was the first word of these?")
    levels = "[...CSS.highlights.keys()].filter(name => name.startsWith('gw-fade-')).length"
    until(page, f"!{WORDS}.done && {WORDS}.answer === 1 && {levels} > 2")
    text = "".join(text for texts in painted(page, "fade").values() for text in texts)
    assert "first" in text
    assert "<|im_" not in text
    page.tab.locator("#chat-stop").click()
    settled(page)
    placed = f"const {{ words, text }} = {WORDS}; const shown = words.filter(w => text.shows(w));"
    found = page.tab.evaluate(
        f"() => {{ {placed} return shown.map(w => [w.message, w.text, String(text.range(w))]); }}"
    )
    assert {number for number, *_ in found} == {0, 1}
    assert [text for _, text, _ in found] == [painted for *_, painted in found]
    switch = page.tab.locator("#words-fade input")
    switch.uncheck()
    assert painted(page, "fade") == {}
    switch.check()
    assert painted(page, "fade")
    click_word(page, 0, "first")
    page.tab.locator("#words-forget").click()
    until(page, f"{WORDS}.counterfactual.running")
    page.tab.locator("#chat-stop").click()
    assert not page.tab.locator("#words-result").is_visible()
    assert painted(page, "forgotten") == {}


@pytest.mark.slow
def test_what_was_not_recorded_is_dotted(page):
    live = page.tab.locator("#live input")
    page.settings()
    live.uncheck()
    page.tab.locator("#chat-box textarea").fill("A" * 2100)  # too long to be read again
    page.tab.locator("#chat-box textarea").press("Enter")
    until(page, "/stopped at/.test(document.querySelector('#chat-status').innerText)")
    until(page, "CSS.highlights.has('gw-fade-unknown')")
    texts = [*map(str.strip, page.messages() + page.messages("bot"))]  # it may end in a line break
    assert [*map(str.strip, painted(page, "fade")["unknown"])] == texts
    live.check()
    page.settings()
    page.ask("another")
    settled(page)
    assert [*map(str.strip, painted(page, "fade")["unknown"])] == texts
    assert page.tab.locator("#words-fade + .scale .unknown").is_visible()
    assert "not recorded" in page.view("find('count').textContent")


def test_a_message_that_is_too_long_says_so_after_a_click_too(page):
    page.tab.locator("#chat-box textarea").fill("word " * 12_000)  # one word takes seconds
    page.tab.locator("#chat-box .submit-button").click()
    assert "too long" in status(page)


@pytest.mark.slow
def test_a_word_is_chosen_by_a_click_a_selection_and_keys(page):
    page.ask("One two. Three four")
    settled(page)
    page.tab.set_viewport_size({"width": 390, "height": 800})
    click_word(page, 0, "two")
    until(page, "CSS.highlights.has('gw-fade-later')")  # the answer was not read yet
    assert painted(page, "chosen") == {"0": ["two"]}
    assert "when “two” was read" in status(page)
    assert page.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")  # a phone
    page.tab.set_viewport_size({"width": 1280, "height": 900})
    for button, chosen in (("sentence", "One two."), ("message", "One two. Three four")):
        page.tab.locator(f"#words-bar .{button}").click()
        assert painted(page, "chosen") == {"0": [chosen]}
    page.tab.keyboard.press("Escape")
    assert painted(page, "chosen") == {}
    assert "later" not in painted(page, "fade")
    assert page.tab.evaluate("document.activeElement.id") == "words-pick"
    for key in ("Enter", "Home", "ArrowRight", "Shift+ArrowRight"):
        page.tab.keyboard.press(key)
    assert painted(page, "chosen") == {"0": ["two."]}
    page.tab.evaluate(
        "() => { const node = document.querySelector('#chat .chatbot').firstChild;"
        "getSelection().setBaseAndExtent(node, 11, node, 16); }"
    )
    until(page, f"{WORDS}.name === '“Three four”'")  # from "hree f"
    page.tab.locator("#words-bar .close").click()
    assert painted(page, "chosen") == {}


@pytest.fixture
def demo(page):
    """An answer of the demo, which has learned something."""
    page.set_tokens(30)
    page.set(SEED, 1)
    page.choose("demo")
    page.ask("What does `str.split` do?")
    settled(page)
    return page


def test_a_forgotten_word_changes_the_answer_and_a_word_tells_what_it_needed(page, demo):
    before = page.messages("bot")
    assert before[0].startswith("`str.split(")
    texts = [piece["text"] for piece in page.view("pieces")]
    asked, answered = (token for token, text in enumerate(texts) if text == "split")
    spans = page.tab.locator("#chat-view .text span")
    spans.nth(answered).dispatch_event("click")
    until(page, f"{view()}.memory.row?.retention.length === {answered + 1}")
    shown = [spans.nth(m).evaluate(GROUND) for m in range(answered)]
    rank = sum(each > shown[asked] for each in shown)
    assert rank < 6 < answered - asked - 1  # which is the rank by recency
    until(page, f"{WORDS}.choice !== null")  # the panel's word is the chat's, too
    assert page.tab.locator("#words-forget").is_disabled()  # a word of the answer itself
    page.tab.locator("#words-depends").click()
    until(page, f"{WORDS}.losses")
    assert page.tab.evaluate("document.activeElement.id") == "words-bar"  # for more keys
    lost = painted(page, "lost")
    assert lost.pop("9") == ["."], "right before it"
    assert ["split"] in lost.values(), "in the question"
    assert status(page).startswith("Without “.” before it, “split” is ")
    click_word(page, 0, "split")
    forget(page)
    result = page.tab.locator("#words-result")
    assert result.locator(".note").inner_text().startswith("What changed is marked")
    assert result.locator(".original").inner_text() == before[0]
    assert "split" in "".join(result.locator(".original del").all_inner_texts())
    other = result.locator(".without").inner_text()
    assert "split" not in other
    assert "".join(result.locator(".without ins").all_inner_texts()).split()[0] in other
    assert painted(page, "forgotten") == {"0": ["split"]}
    page.tab.locator("#words-undo").click()
    assert not result.is_visible()
    assert painted(page, "forgotten") == {}
    assert (page.messages(), page.messages("bot")) == (["What does `str.split` do?"], before)


@pytest.mark.slow
def test_a_box_of_the_heatmap_is_wiped_and_the_answer_written_again(page, demo):
    click_word(page, 0, "split")
    result = page.tab.locator("#words-result")
    for number, name in ((3, "amplified"), (2, "nothing lost"), (1, "held wiped")):
        page.tab.locator(f"#words-bar .change[value='{number}']").click()
        until(page, f"/{name}/.test(document.querySelector('#words-result .title').innerText)")
        until(page, SHOWS_ANSWER)
        assert painted(page, "forgotten") == {}  # it was read
    assert "marked" in result.locator(".note").inner_text()
    assert "str.split" not in result.locator(".without").inner_text()
    page.tab.locator("#words-undo").click()
    panel = page.tab.locator("#chat-view")
    panel.locator(".lens summary").click()
    until(page, "document.querySelectorAll('#chat-view .lens li').length === 4")
    assert " s" in panel.locator(".appears").inner_text()
    for value, line in (("part", "nats without channel"), ("same", "correlation")):
        panel.locator("select.bars").select_option(value=value)
        panel.locator(f".most:has-text('{line}')").wait_for()
        assert page.view("heatmaps.bars.values.length") == 128
    panel.locator("select.layer").select_option(index=2)
    picture = page.tab.locator("#chat-view .magnitude")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.tab.keyboard.down("Shift")
    page.tab.mouse.move(box["x"] + box["width"] / 8, box["y"] + box["height"] * 99.5 / 128)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] - 9, box["y"] - 9, steps=3)  # beside and above the picture
    page.tab.mouse.up()
    page.tab.keyboard.up("Shift")
    page.tab.locator("#words-bar .chosen:has-text('in 100 channels of layer 3')").wait_for()
    assert page.view("heatmaps.box.first") == 0
    page.view("select(10 ** 6)")  # a click beside the last token chooses nothing else
    page.tab.locator("#words-bar .change[value='1']").click()
    until(page, "/layer 3/.test(document.querySelector('#words-result .title').innerText)")
    until(page, SHOWS_ANSWER)
    assert result.locator(".original").inner_text() == page.messages("bot")[0]
    page.tab.locator("#words-bar .close").click()
    assert page.view("heatmaps.box") is None
