"""The state view: a column and a text for every token, in every layer, and in files."""

import base64
from io import BytesIO

import numpy as np
import pytest
from helpers.browser import QUESTIONS, has, view
from PIL import Image

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
MARKED = "[...document.querySelectorAll('#chat-view .text .reset')].map(e => +e.dataset.token)"
CANVASES = """() => ['layers', 'axis', 'magnitude', 'phase'].map(name =>
  document.querySelector(`#chat-view .${name}`).toDataURL().split(',')[1])"""


def test_an_answer_has_a_column_for_every_token(page, arrays):
    page.tab.set_viewport_size({"width": 800, "height": 900})
    page.answer("an empty chat has no order to choose")
    page.tab.select_option("#chat-view .order", "sorted")
    page.tab.locator("#clear").click()
    page.shows(0)
    page.settled()
    assert page.view("run") is None
    page.set_tokens(500)
    tokens = page.answer("hello")
    assert len([piece for piece in page.view("pieces") if not piece["prompt"]]) == 500 < tokens
    bins = -(-tokens // 2)  # there are fewer pixels than tokens
    for picture, rows in enumerate((page.channels, page.channels, page.layers)):
        assert page.tab.evaluate(COLUMNS, picture) == [bins, bins, rows]
    assert "means of 2 tokens" in page.tab.locator("#chat-view .stack").inner_text()
    order = page.view("heatmaps.order")  # by half-life
    assert page.view("heatmaps.sortedTokens") == tokens
    assert sorted(order) == list(range(page.channels))
    rate = -np.log(arrays(page)["magnitude"][0, :tokens].astype(float))
    codes = np.rint(np.log(np.clip(rate, LOW, HIGH) / LOW) / np.log(HIGH / LOW) * 255).sum(0)
    assert (np.diff(codes[order]) >= -2).all()  # a code may round the other way
    assert codes[order[0]] < codes[order[-1]]
    page.tab.select_option("#chat-view .order", "natural")
    assert page.view("heatmaps.order") == list(range(page.channels))


@pytest.mark.slow
def test_an_answer_brings_its_columns_and_words_and_the_layer_stays(page):
    page.answer("the first message")
    asked = []
    page.tab.on("request", lambda request: asked.append(request.post_data or ""))
    tokens = page.answer("the second")
    assert not any("updates_since" in data for data in asked)  # not even of the first message
    assert page.view("recording.words.length") > 4
    shown = page.tab.locator("#chat-view .text").evaluate("e => e.textContent")
    assert "the first message" in shown
    for layer in (0, 2):  # the other one was not asked for before
        page.tab.select_option("#chat-view .layer", index=layer)
        page.tab.wait_for_function(has(tokens))
        page.painted()
        assert page.tab.evaluate(COLUMNS, 0) == [tokens, tokens, page.channels]
    page.answer("a third")
    assert page.view("layer") == 2
    assert page.tab.locator("#chat-view .layer").input_value() == "2"


def test_the_view_asks_again_where_a_server_has_no_answer(page):
    tokens = page.answer("patience")
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


def test_the_files_have_what_the_view_shows(answered, arrays, download):
    held, tokens = arrays(answered), answered.view("pieces.length")
    shape = (answered.layers, tokens, answered.channels)
    assert held["magnitude"].shape == held["phase"].shape == shape
    texts = [piece["text"].rstrip("\0") for piece in answered.view("pieces")]  # as NumPy keeps them
    assert held["texts"].tolist() == texts
    marked = answered.tab.evaluate(MARKED)
    assert marked
    for layer in (1, 2, 1, 0):  # whichever layer is shown
        assert answered.tab.evaluate(SWITCH, layer) == answered.tab.evaluate(MARKED) == marked
    answered.tab.wait_for_function(f"!{view()}.asking && !{view()}.memory.asking")
    answered.painted()
    shown = [Image.open(BytesIO(base64.b64decode(p))) for p in answered.tab.evaluate(CANVASES)]
    file = download(answered, "png")
    assert file.name == "a-What-does-a-state-keep-layer-1.png"
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    top = 0
    for canvas in shown:  # one below the other
        drawn = np.asarray(canvas.convert("RGBA")).astype(int)
        opaque = drawn[..., 3] == 255
        assert opaque.any()
        assert (pixels[top : top + canvas.height][opaque] == drawn[opaque][:, :3]).all()
        top += canvas.height
    assert pixels.shape[0] == top
