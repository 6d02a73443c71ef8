"""The state view: a column and a text for every token, in every layer."""

import numpy as np
import pytest
from helpers.browser import QUESTIONS, has

from mlx_gateloop.watch.sharing import HIGH, LOW

COLUMNS = """name => {
  const picture = document.querySelector('#chat-view .gl').view.heatmaps.pictures[name].canvas;
  const pixels = picture.getContext('2d').getImageData(0, 0, picture.width, picture.height).data;
  const painted = x => pixels[4 * x + 3] === 255;
  return [Array.from({length: picture.width}, (_, x) => painted(x)).lastIndexOf(true) + 1,
          Array.from({length: picture.width}, (_, x) => painted(x)).filter(Boolean).length,
          picture.height];
}"""
SWITCH = """layer => {
  const gl = document.querySelector('#chat-view .gl'), picker = gl.querySelector('.layer');
  picker.value = layer;
  picker.dispatchEvent(new Event('change'));
  return [...gl.view.recording.resets];  // before any answer of the server
}"""
MARKED = (
    "[...document.querySelectorAll('#chat-view .text .reset')].map(e => Number(e.dataset.token))"
)


def resets(magnitude):
    """Tokens at which a quarter of the channels that remember forget, of all layers."""
    rate = -np.log(np.concatenate([*magnitude], 1))
    remembers = rate.mean(0) <= np.log(2)
    forgets = (rate[:, remembers] > np.log(2)).sum(1)
    return np.flatnonzero(forgets >= max(1, 0.25 * remembers.sum())).tolist()


def test_an_answer_streams_with_a_column_for_every_token(page):
    page.set_tokens(1024)
    page.ask("hello")
    page.tab.wait_for_function(
        "document.querySelector('#chat .bot')?.innerText.length > 0"
        " && !document.querySelector('#chat-view .gl').view.done"
    )
    tokens = page.finished()
    written = [piece for piece in page.view("pieces") if not piece["prompt"]]
    assert len(written) == 1024 < tokens
    page.painted()
    bins = -(-tokens // 2)  # there are fewer pixels than tokens
    for picture, rows in enumerate((page.channels, page.channels, page.layers)):
        assert page.tab.evaluate(COLUMNS, picture) == [bins, bins, rows]
    assert "means of 2 tokens" in page.tab.locator("#chat-view .stack").inner_text()
    status = page.tab.locator("#chat-status").inner_text()
    for figure in ("first token", "prefill", "decode", "state", "memory"):
        assert figure in status


def test_an_answer_brings_its_columns_and_words(page):
    page.ask("the first message")
    page.finished()
    asked = []
    page.tab.on("request", lambda request: asked.append(request.post_data or ""))
    page.ask("the second")
    tokens = page.finished()
    assert not any("updates_since" in data for data in asked)  # not even of the first message
    assert page.view("recording.words.length") > 4
    shown = page.tab.locator("#chat-view .text").evaluate("e => e.textContent")
    assert "the first message" in shown
    page.painted()
    for layer in (0, 2):  # the other one was not asked for before
        page.tab.select_option("#chat-view .layer", index=layer)
        page.tab.wait_for_function(has(tokens))
        page.painted()
        assert page.tab.evaluate(COLUMNS, 0) == [tokens, tokens, page.channels]


def test_the_chosen_layer_stays_for_the_next_message(page):
    page.ask("one")
    page.finished()
    page.tab.select_option("#chat-view .layer", index=2)
    page.ask("two")
    assert page.view("layer") == 2
    page.finished()
    assert page.tab.locator("#chat-view .layer").input_value() == "2"
    assert page.view("layer") == 2


def test_the_view_asks_again_where_a_server_has_no_answer(page):
    page.ask("patience")
    tokens = page.finished()
    asked = []

    def nothing(route):
        asked.append(route)
        route.fulfill(content_type="application/json", body="null")

    page.tab.route(QUESTIONS, nothing)
    page.tab.select_option("#chat-view .layer", index=1)
    while len(asked) < 4:
        page.tab.wait_for_timeout(10)
    assert page.view("have") == 0
    page.tab.unroute_all(behavior="wait")  # or an answer on its way finds its route gone
    page.tab.wait_for_function(has(tokens))
    page.tab.select_option("#chat-view .layer", index=0)


def test_resets_are_marked_whichever_layer_is_shown(page, arrays):
    page.ask("resets")
    page.finished()
    expected = resets(arrays(page)["magnitude"])
    assert expected
    for layer in (1, 2, 1, 0):
        assert page.tab.evaluate(SWITCH, layer) == page.tab.evaluate(MARKED) == expected


@pytest.mark.slow
def test_switching_layers_while_it_runs_loses_no_column_and_no_mark(page, arrays):
    page.set_tokens(600)
    page.ask("back and forth")
    page.tab.wait_for_function(has(61))
    seen = []
    for layer in (2, 0, 1, 3):
        seen.append(page.tab.evaluate(SWITCH, layer))
        page.tab.wait_for_function(has(61))
    tokens = page.finished()
    assert page.view("layer") == 3
    assert page.tab.evaluate(COLUMNS, 0) == [tokens, tokens, page.channels]
    held = arrays(page)["magnitude"]
    assert page.tab.evaluate(MARKED) == resets(held)
    begun = [resets(held[:, :count]) for count in range(1, tokens + 1)]
    assert all(marks == [] or marks in begun for marks in seen)  # of the tokens that there were


def test_sorted_channels_are_ordered_by_half_life(page, arrays):
    page.tab.select_option("#chat-view .order", "sorted")
    page.ask("order")
    tokens = page.finished()
    page.painted()
    order = page.view("heatmaps.order")
    assert page.view("heatmaps.sortedTokens") == tokens  # all of them count at the end
    assert sorted(order) == list(range(page.channels))
    rate = -np.log(arrays(page)["magnitude"][0, :tokens].astype(float))
    codes = np.rint(np.log(np.clip(rate, LOW, HIGH) / LOW) / np.log(HIGH / LOW) * 255).sum(0)
    assert (np.diff(codes[order]) >= -2).all()  # a code may round the other way
    assert codes[order[0]] < codes[order[-1]]
    page.tab.select_option("#chat-view .order", "natural")
    assert page.view("heatmaps.order") == list(range(page.channels))


def test_the_text_is_complete_when_a_run_ends_within_a_character(page, arrays):
    page.choose("half")
    page.set_tokens(5)
    page.ask("ends early")
    page.finished()
    texts = arrays(page)["texts"].tolist()
    assert texts[-1].endswith("\ufffd")
    assert [piece["text"] for piece in page.view("pieces")] == texts
    shown = page.tab.locator("#chat-view .text").evaluate("e => e.textContent")
    assert shown == "".join(texts)
    assert page.messages("bot") == ["\ufffd" * 5]
