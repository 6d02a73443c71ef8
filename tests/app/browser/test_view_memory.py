"""The memory of each token, in the state view."""

import re

import pytest
from helpers.browser import view

NAMES = ("--left", "--best")
STYLE = "(e, name) => e.style.getPropertyValue(name)"
GROUND = "e => Number(getComputedStyle(e).backgroundColor.match(/[\\d.]+/g)[3] ?? 1)"  # opacity


def test_a_click_draws_what_is_remembered_and_the_likeliest_tokens(page):
    page.ask("click")
    page.finished()
    pieces = page.view("pieces")
    # one that can be seen, and is not the only one of a line
    last = max(i for i, piece in enumerate(pieces) if re.fullmatch(r"[!-~]", piece["text"]))
    token = page.tab.locator(f"#chat-view .text span[data-token='{last}']")
    token.click()
    page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")
    row = page.view("row")
    assert {len(row[name]) for name in ("retention", "best", "channel", "full")} == {last + 1}
    assert row["best"][-1] == 1
    assert row["best"] == sorted(row["best"])
    chances = [chance for _, chance in row["candidates"]]
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1.001
    assert page.tab.locator("#chat-view .candidates li").count() == len(chances) > 1
    assert "252, 137, 97" in token.evaluate("e => getComputedStyle(e).backgroundColor")
    assert float(page.tab.locator("#chat-view .moment").input_value()) == last
    token.press("ArrowLeft")
    page.tab.wait_for_function(
        f"document.querySelector('#chat-view .gl').view.row?.retention.length === {last}"
    )


def test_a_word_says_what_is_left_in_the_state_and_in_its_best_channel(page, arrays):
    page.ask("which of it is left")
    tokens = page.finished()
    page.tab.locator("#chat-view .text span").nth(tokens - 1).dispatch_event("click")
    page.tab.wait_for_function(f"{view()}.row")
    earlier = tokens - 3
    left = arrays(page)["magnitude"][0, earlier + 1 :].prod(0)
    line = page.tab.locator("#chat-view .text span").nth(earlier)
    line.dispatch_event("mouseover")
    said = page.tab.locator("#chat-view .share").inner_text()
    strength = share(page.view("row"), earlier)
    strong, channel, best = re.search(
        r"(\S+)% as .* channel (\d+) of this layer keeps (\S+)%", said
    ).groups()
    assert float(strong) == pytest.approx(100 * strength, abs=0.6)
    assert int(channel) == left.argmax()
    assert float(best) == pytest.approx(100 * left.max(), abs=0.6)
    styles = [float(line.evaluate(STYLE, name).split(",")[-1].strip(")")) for name in NAMES]
    assert styles == pytest.approx([strength**0.5, left.max()], abs=0.01)


def share(row, token):
    """The strength of a token beside the strongest."""
    return row["retention"][token] / max(row["retention"])


def test_a_name_that_is_copied_is_among_the_strongest(page):
    page.choose("demo")
    page.set("#seed input", 1)
    page.ask("What does `str.split` do?")
    page.finished()
    texts = [piece["text"] for piece in page.view("pieces")]
    asked, answered = (token for token, text in enumerate(texts) if text == "split")
    spans = page.tab.locator("#chat-view .text span")
    spans.nth(answered).click()
    page.tab.wait_for_function(f"{view()}.row")
    shown = [spans.nth(m).evaluate(GROUND) for m in range(answered)]
    rank = sum(each > shown[asked] for each in shown)
    assert rank < 6 < answered - asked - 1  # which is the rank by recency
    page.set("#seed input", -1)


def test_a_token_is_selected_before_it_is_drawn(page):
    page.ask("soon")
    page.finished()
    page.painted()
    page.tab.evaluate(f"{view()}.text.clear()")  # as before the frame that draws it
    page.tab.evaluate(f"{view()}.select(3)")
    assert page.tab.locator("#chat-view .selected").get_attribute("data-token") == "3"


def test_a_scrubber_moves_through_time_and_plays(page):
    page.ask("time")
    tokens = page.finished()
    moment, later = (page.tab.locator(f"#chat-view {name}") for name in (".moment", ".text .later"))
    page.tab.wait_for_function(f"{view()}.row")  # the last one's, without a click
    assert moment.input_value() == str(tokens - 1)
    assert later.count() == 0
    moment.fill("20")
    page.tab.wait_for_function(f"{view()}.row?.retention.length === 21")
    assert page.tab.locator("#chat-view .selected").get_attribute("data-token") == "20"
    assert later.count() == tokens - 21
    assert "token 20" in page.tab.locator("#chat-view .now").inner_text()
    play = page.tab.locator("#chat-view .play")
    moment.press("End")
    play.click()  # from the first, as it is at the last
    page.tab.wait_for_function("document.querySelector('#chat-view .moment').value > 5")
    play.click()
    assert play.inner_text() == "Play"
    assert 5 < int(moment.input_value()) < tokens - 1
