"""A hybrid of another type and attention alone, in the page."""

import base64

import numpy as np
from helpers.browser import view

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling, Speed, stream
from mlx_gateloop.io.models import load_any

from .test_words import click_word, settled, status, until

CODES = """layer => {
  const { columns, layers } = document.querySelector('#chat-view .gl').view.recording;
  const { data, length, size } = columns[layer];
  return [layers[layer].channels, btoa(String.fromCharCode(...data.slice(0, length * size)))];
}"""
OPTIONS = """() => [...document.querySelectorAll('#chat-view .layer option')].map(
  option => [option.value, option.textContent, option.disabled])"""
KEEPS = "not watched: attention keeps tokens unchanged"
TOKENS = 24


def choose(page, name, type):
    page.set_tokens(TOKENS)
    page.choose(name)
    about = "document.querySelector('#model-about').innerText"
    page.tab.wait_for_function(f"{about} === '2 layers, {type}'")


def recorded(folder, text):
    """The recording of the answer to a message, the answer, and the tokens in the view."""
    model, tokenizer = load_any(folder / "falcon")
    messages, speed = [{"role": "user", "content": text}], Speed()
    sampling = Sampling(0.7, top_p=0.95, min_p=0.05, seed=7)
    with gl.watch.recording(model) as recorder:
        pieces = stream(model, tokenizer, messages, sampling, max_tokens=TOKENS, speed=speed)
        answer = "".join(pieces)
    # mlx-lm has read the token that ends an answer before it tells; the view has it not.
    return recorder, answer, recorder.trace.tokens - (speed.tokens < TOKENS)


def codes(page, layer):
    page.tab.select_option("#chat-view .layer", value=str(layer))
    page.tab.wait_for_function(f"{view()}.done && {view()}.have === {view()}.pieces.length")
    channels, data = page.tab.evaluate(CODES, layer)
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, 2, channels)


def test_a_hybrid_is_recorded_undone_edited_saved_and_opened(seeded, endless_models):
    page = seeded
    choose(page, "falcon", "falcon_h1")
    text = "what does a state remember, of the first message"
    first = page.answer(text)
    expected, answer, read = recorded(endless_models, text)
    visible = answer.replace("\r", " ").strip("\n")  # a browser shows a carriage return as a space
    assert (page.messages("bot"), first) == ([visible], read)
    for layer in range(2):
        shown = codes(page, layer).astype(int)
        assert len(shown) == first
        assert np.abs(shown - expected.trace.columns(layer, 0, first)).max() <= 1
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
    run, before = page.view("run"), codes(page, 1)
    page.answer("a second one")
    now, whole = page.read()
    assert now < first < whole  # the first message was not read again
    assert (codes(page, 1)[:first] == before).all()
    output = page.messages("bot")
    page.tab.get_by_label("Undo").last.click()
    page.shows(1)
    page.tab.wait_for_function(f"run => {view()}.run === run", arg=run)
    assert (codes(page, 1) == before).all()
    page.answer("a second one")
    assert page.messages("bot") == output  # from the same state
    assert page.read()[0] == 1
    before = page.view("run")
    page.tab.get_by_label("Edit").last.click()
    page.tab.locator("#chat textarea").fill("another second one")
    page.tab.get_by_label("Submit").last.click()
    page.begun(before)
    settled(page)
    assert page.read()[0] < first
    click_word(page, 2, "second")
    for button in ("#words-depends", "#words-forget"):
        page.tab.locator(button).click()
        until(page, "/^model: layer/.test(document.querySelector('#chat-words .status').innerText)")
        assert "no step can be left out exactly" in status(page)
        page.tab.locator("#words-bar .message").click()
    page.name("a hybrid")
    output = page.messages("bot")
    page.tab.locator("#clear").click()
    page.shows(0)
    page.open_saved("a hybrid")
    page.shows(2)
    assert page.messages("bot") == output
    for place in ("#chat-view .note", "#chat-words .status"):
        assert "starts with the next answer" in page.tab.locator(place).inner_text()
    page.answer("go on")
    now, whole = page.read()
    assert now == whole > 60  # its trace is recorded again


def test_attention_alone_answers_and_says_that_there_is_nothing_to_see(seeded):
    page = seeded
    choose(page, "llama", "llama")
    page.tab.locator("#chat-box textarea").fill("hello")
    page.tab.locator("#chat-box textarea").press("Enter")
    page.tab.wait_for_function(
        "/done|stopped/.test(document.querySelector('#chat-status').innerText)"
    )
    # Without columns nothing tells that the page shows the text, which may follow the status.
    page.tab.wait_for_function(
        "document.querySelector('#chat [data-testid=bot]')?.textContent.trim()"
    )
    page.settled()
    hint = f"Nothing to show: the layers are {KEEPS}"
    assert hint in page.view("heatmaps.hint")
    for element in ("#chat-view .note", "#chat-words .status"):
        assert hint in page.tab.locator(element).inner_text()
    assert page.tab.evaluate(OPTIONS) == [["0", "1", False]]  # and not those of another model
