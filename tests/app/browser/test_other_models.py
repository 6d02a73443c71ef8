"""A hybrid of another type and attention alone, in the page."""

import base64

import numpy as np
import pytest

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling, Speed, stream
from mlx_gateloop.io.models import load_any

CODES = """layer => {
  const { columns, layers } = document.querySelector('#chat-view .gl').view.recording;
  const { data, length, size } = columns[layer];
  return [layers[layer].channels, btoa(String.fromCharCode(...data.slice(0, length * size)))];
}"""
WHOLE = """() => {
  const { done, have, pieces } = document.querySelector('#chat-view .gl').view;
  return done && have === pieces.length;
}"""
OPTIONS = """() => [...document.querySelectorAll('#chat-view .layer option')].map(
  option => [option.value, option.textContent, option.disabled])"""
TOKENS = 24


def choose(page, name, type):
    page.set_tokens(TOKENS)
    page.choose(name)
    about = "document.querySelector('#model-about').innerText"
    page.tab.wait_for_function(f"{about} === '2 layers, {type}'")


@pytest.fixture
def falcon(seeded):
    """A page with a tiny random falcon_h1."""
    choose(seeded, "falcon", "falcon_h1")
    return seeded


@pytest.fixture(scope="module")
def recorder(endless_models):
    """The recording of the answer to a message, the answer, and the tokens in the view."""
    model, tokenizer = load_any(endless_models / "falcon")

    def record(text):
        messages = [{"role": "user", "content": text}]
        sampling = Sampling(0.7, top_p=0.95, min_p=0.05, seed=7)
        speed = Speed()
        with gl.watch.recording(model) as recorder:
            pieces = stream(model, tokenizer, messages, sampling, max_tokens=TOKENS, speed=speed)
            answer = "".join(pieces)
        # mlx-lm has read the token that ends an answer before it tells; the view has it not.
        has_ended = speed.tokens < TOKENS
        return recorder, answer, recorder.trace.tokens - has_ended

    return record


def codes(page, layer):
    page.tab.select_option("#chat-view .layer", value=str(layer))
    page.tab.wait_for_function(WHOLE)
    channels, data = page.tab.evaluate(CODES, layer)
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(-1, 2, channels)


def test_every_column_of_a_hybrid_is_the_recorders(falcon, recorder):
    falcon.ask("what does a state remember")
    tokens = falcon.finished()
    expected, answer, read = recorder("what does a state remember")
    visible = answer.replace("\r", " ").strip("\n")  # a browser shows a carriage return as a space
    assert falcon.messages("bot") == [visible]
    assert tokens == read
    for layer in range(2):
        shown = codes(falcon, layer).astype(int)
        assert len(shown) == tokens
        assert np.abs(shown - expected.trace.columns(layer, 0, tokens)).max() <= 1


def test_attention_layers_of_a_hybrid_are_labelled(falcon):
    falcon.ask("labels")
    falcon.finished()
    reason = "not watched: attention keeps tokens unchanged, without a decay"
    assert falcon.tab.evaluate(OPTIONS) == [
        ["0", "1: layers.0.mamba · state space", False],
        ["-1", f"layers.0.self_attn · {reason}", True],
        ["1", "2: layers.1.mamba · state space", False],
        ["-1", f"layers.1.self_attn · {reason}", True],
    ]
    assert "0: real transitions" in falcon.tab.locator("#chat-view .stack").inner_text()
    status = falcon.tab.locator("#chat-status").inner_text()
    assert "constant" in status
    assert "grows" in status


def test_a_hybrid_chats_is_undone_edited_saved_and_opened(falcon):
    falcon.ask("the first message " * 5)
    first = falcon.finished()
    run, before = falcon.view("run"), codes(falcon, 1)
    falcon.ask("a second one")
    falcon.finished()
    now, whole = falcon.read()
    assert now < first < whole  # the first message was not read again
    assert (codes(falcon, 1)[:first] == before).all()
    said = falcon.messages("bot")
    falcon.tab.get_by_label("Undo").last.click()
    falcon.shows(1)
    falcon.tab.wait_for_function(
        "run => document.querySelector('#chat-view .gl').view.run === run", arg=run
    )
    assert (codes(falcon, 1) == before).all()
    falcon.ask("a second one")
    falcon.finished()
    assert falcon.messages("bot") == said  # from the same state
    assert falcon.read()[0] == 1
    before = falcon.view("run")
    falcon.tab.get_by_label("Edit").last.click()
    falcon.tab.locator("#chat textarea").fill("another second one")
    falcon.tab.get_by_label("Submit").last.click()
    falcon.begun(before)
    falcon.finished()
    assert falcon.read()[0] < first
    falcon.save("a hybrid")
    said = falcon.messages("bot")
    falcon.tab.locator("#clear").click()
    falcon.shows(0)
    falcon.open_saved()
    falcon.shows(2)
    assert falcon.messages("bot") == said
    falcon.ask("go on")
    falcon.finished()
    now, whole = falcon.read()
    assert now == whole > 60  # its trace is recorded again


def test_attention_alone_answers_and_says_that_there_is_nothing_to_see(seeded):
    page = seeded
    choose(page, "llama", "llama")
    page.tab.locator("#chat-box textarea").fill("hello")
    page.tab.locator("#chat-box textarea").press("Enter")
    page.tab.wait_for_function("/done/.test(document.querySelector('#chat-status').innerText)")
    # Without columns nothing tells that the page shows the text, which may follow the status.
    page.tab.wait_for_function(
        "document.querySelector('#chat [data-testid=bot]')?.textContent.trim()"
    )
    page.settled()
    assert page.messages("bot")[0]
    hint = "Nothing to show: the layers are not watched: attention keeps tokens unchanged"
    assert hint in page.view("heatmaps.hint")
    assert hint in page.tab.locator("#chat-view .note").inner_text()
    assert hint in page.tab.locator("#chat-words .status").inner_text()
    assert page.tab.evaluate(OPTIONS) == [["0", "1", False]]  # and not those of another model
