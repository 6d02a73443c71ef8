"""The memory of each token, in the state view."""

import re

import pytest
from helpers.browser import view

STYLE = "(e, name) => e.style.getPropertyValue(name)"


def until_row(page, length):
    page.tab.wait_for_function(f"{view()}.memory.row?.retention.length === {length}")


def test_a_click_draws_what_is_remembered_and_the_likeliest_tokens(answered):
    page, pieces = answered, answered.view("pieces")
    # one that can be seen, and is not the only one of a line
    last = max(i for i, piece in enumerate(pieces) if re.fullmatch(r"[!-~]", piece["text"]))
    token = page.tab.locator(f"#chat-view .text span[data-token='{last}']")
    token.click()
    until_row(page, last + 1)
    assert page.tab.locator("#chat-view .candidates li").count() == 8
    assert "252, 137, 97" in token.evaluate("e => getComputedStyle(e).backgroundColor")
    assert float(page.tab.locator("#chat-view .moment").input_value()) == last
    token.press("ArrowLeft")
    until_row(page, last)
    page.tab.evaluate(f"{view()}.memory.text.clear()")  # as before the frame that draws it
    page.tab.evaluate(f"{view()}.select(3)")
    assert page.chosen() == 3


def test_a_word_says_what_is_left_in_the_state_and_in_its_best_channel(answered, arrays):
    page, tokens = answered, answered.view("pieces.length")
    until_row(page, tokens)
    earlier = tokens - 3
    left = arrays(page)["magnitude"][0, earlier + 1 :].prod(0)
    line = page.tab.locator("#chat-view .text span").nth(earlier)
    line.dispatch_event("mouseover")
    output = page.tab.locator("#chat-view .share").inner_text()
    retention = page.view("memory.row.retention")
    strength = retention[earlier] / max(retention)
    strong, channel, best = re.search(
        r"(\S+)% as .* channel (\d+) of this layer keeps (\S+)%", output
    ).groups()
    assert float(strong) == pytest.approx(100 * strength, abs=0.6)
    assert int(channel) == left.argmax()
    assert float(best) == pytest.approx(100 * left.max(), abs=0.6)
    shown = [float(line.evaluate(STYLE, n).split(",")[-1].strip(")")) for n in ("--left", "--best")]
    assert shown == pytest.approx([strength**0.5, left.max()], abs=0.01)


def test_a_scrubber_moves_through_time_and_plays(answered):
    page, tokens = answered, answered.view("pieces.length")
    moment, later = (page.tab.locator(f"#chat-view {name}") for name in (".moment", ".text .later"))
    until_row(page, tokens)
    assert moment.input_value() == str(tokens - 1)
    assert later.count() == 0
    moment.fill("20")
    until_row(page, 21)
    assert page.chosen() == 20
    assert later.count() == tokens - 21
    assert "token 20" in page.tab.locator("#chat-view .now").inner_text()
    play = page.tab.locator("#chat-view .play")
    moment.press("End")
    play.click()  # from the first, as it is at the last
    page.tab.wait_for_function("document.querySelector('#chat-view .moment').value > 5")
    play.click()
    assert play.inner_text() == "Play"
    assert 5 < int(moment.input_value()) < tokens - 1
