"""A hybrid of another type and attention alone, in the page."""

import pytest

pytestmark = pytest.mark.slow
OPTIONS = """() => [...document.querySelectorAll('#chat-view .layer option')].map(
  option => [option.value, option.textContent, option.disabled])"""
KEEPS = "not watched: attention keeps tokens unchanged"


def test_a_hybrid_is_watched(seeded):
    page = seeded
    page.set_tokens(24)
    page.choose("falcon", "2 layers, falcon_h1")
    page.answer("what does a state remember, of the first message")
    assert page.tab.evaluate(OPTIONS) == [
        ["0", "1: layers.0.mamba · state space", False],
        ["-1", f"layers.0.self_attn · {KEEPS}, without a decay", True],
        ["1", "2: layers.1.mamba · state space", False],
        ["-1", f"layers.1.self_attn · {KEEPS}, without a decay", True],
    ]
    assert "0: real transitions" in page.tab.locator("#chat-view .stack").inner_text()
    figures = page.tab.locator("#chat-status").inner_text()
    assert "constant" in figures
    assert "grows" in figures


def test_attention_alone_answers_and_says_that_there_is_nothing_to_see(seeded):
    page, wait = seeded, seeded.tab.wait_for_function
    page.choose("llama", "2 layers, llama")
    page.tab.locator("#chat-box textarea").fill("hello")
    page.tab.locator("#chat-box textarea").press("Enter")
    wait("/done|stopped/.test(document.querySelector('#chat-status').innerText)")
    # Without columns nothing tells that the page shows the text, which may follow the status.
    wait("document.querySelector('#chat [data-testid=bot]')?.textContent.trim()")
    page.settled()
    hint = f"Nothing to show: the layers are {KEEPS}"
    assert hint in page.view("hint")
    for element in ("#chat-view .note", "#chat-words .status"):
        assert hint in page.tab.locator(element).inner_text()
    assert page.tab.evaluate(OPTIONS) == [["0", "1", False]]  # and not those of another model
