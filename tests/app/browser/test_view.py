"""The state view: its columns, and what a hover, a click and the controls do."""

import base64
import json
import re
from io import BytesIO

import numpy as np
import pytest
from helpers.browser import view
from PIL import Image

from mlx_gateloop.watch.measures import HIGH, LOW

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


# Edges may be smoothed a little differently: a path's length decides how Chromium does it.
AS_SHOWN_ANEW = """() => {
  const gl = document.querySelector('#chat-view .gl'), names = ['magnitude', 'phase', 'layers'];
  const pixels = () => names.map(name => gl.querySelector(`.${name}`)).map(canvas =>
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data);
  const before = pixels();
  gl.view.heatmaps.show();  // all of it
  const after = pixels();
  return names.filter((_, i) => before[i].some((value, at) => Math.abs(value - after[i][at]) > 48));
}"""
ZOOM = """zoom => {
  const slider = document.querySelector('#chat-view .zoom');
  slider.value = zoom;
  slider.dispatchEvent(new Event('input'));
}"""
SCROLL = "left => { document.querySelector('#chat-view .scroll').scrollLeft = left }"
# What the canvas shows at a place, and what the picture has there.
COLOURS = """([x, y, token, row]) => {
  const gl = document.querySelector('#chat-view .gl'), canvas = gl.querySelector('.magnitude');
  const pixel = (of, x, y) => [...of.getContext('2d').getImageData(x, y, 1, 1).data];
  return [pixel(canvas, x, y), pixel(gl.view.heatmaps.pictures[0].canvas, token, row)];
}"""
# Colours in the canvas of magnitudes that its picture has not, below the marks of resets.
FOREIGN_COLOURS = """() => {
  const { pictures, canvases } = document.querySelector('#chat-view .gl').view.heatmaps;
  const colours = (canvas, top) => {
    const size = [canvas.width, canvas.height - top];
    const bytes = canvas.getContext('2d').getImageData(0, top, ...size).data;
    return new Set(new Uint32Array(bytes.buffer));
  };
  const held = colours(pictures[0].canvas, 0);
  return [...colours(canvases[0], 6)].filter(colour => !held.has(colour)).length;
}"""
CANVASES = """() => ['magnitude', 'phase', 'layers'].map(name =>
  document.querySelector(`#chat-view .${name}`).toDataURL().split(',')[1])"""
QUESTIONS = re.compile("/component_server")  # of the view


def has(tokens):
    return f"document.querySelector('#chat-view .gl').view.have >= {tokens}"


@pytest.fixture
def download(tmp_path):
    """Clicks "png" or "npz" and returns the file and its address."""

    def click(page, kind):
        with page.tab.expect_download() as download:
            page.tab.locator(f"#chat-view .{kind}").click()
        name = download.value.suggested_filename
        assert name.endswith(f".{kind}")
        download.value.save_as(tmp_path / name)
        return tmp_path / name, download.value.url

    return click


@pytest.fixture
def arrays(download):
    """The transitions of a page's run, as it downloads them."""

    def load(page):
        with np.load(download(page, "npz")[0]) as file:
            return dict(file)

    return load


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


def test_hover_tells_what_the_arrays_hold(page, arrays):
    page.ask("hover")
    page.finished()
    page.painted()
    held = arrays(page)
    box = page.tab.locator("#chat-view .magnitude").bounding_box()
    width = min(16, box["width"] / len(page.view("pieces")))
    for token, channel in ((10, 20), (0, 0), (50, page.channels - 1)):
        page.tab.mouse.move(
            box["x"] + (token + 0.5) * width,
            box["y"] + box["height"] * (channel + 0.5) / page.channels,
        )
        tip = page.tab.locator("#chat-view .tip").inner_text()
        assert tip.startswith(f"token {token} ")
        assert f" channel {channel} " in tip
        magnitude, life, phase = (
            float(re.search(pattern, tip)[1].replace(",", ""))
            for pattern in (r"\|a\| (\S+)", r"half-life (\S+)", r"phase (\S+)°")
        )
        exact = held["magnitude"][0, token, channel]
        assert magnitude == pytest.approx(exact, abs=0.03)  # of a code of 8 bits
        assert life == pytest.approx(-np.log(2) / np.log(exact), rel=0.05, abs=0.01)
        assert phase == pytest.approx(np.degrees(held["phase"][0, token, channel]), abs=1.5)


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
    assert {len(row[name]) for name in ("mean", "best", "channel", "full")} == {last + 1}
    for share in (row["mean"], row["best"]):
        assert share[-1] == 1
        assert share == sorted(share)
    chances = [chance for _, chance in row["candidates"]]
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1.001
    assert page.tab.locator("#chat-view .candidates li").count() == len(chances) > 1
    assert "252, 137, 97" in token.evaluate("e => getComputedStyle(e).backgroundColor")
    token.press("ArrowLeft")
    page.tab.wait_for_function(
        f"document.querySelector('#chat-view .gl').view.row?.mean.length === {last}"
    )


def test_a_word_says_what_is_left_on_average_and_in_its_best_channel(page, arrays):
    page.ask("which of it is left")
    tokens = page.finished()
    page.tab.locator("#chat-view .text span").nth(tokens - 1).dispatch_event("click")
    page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")
    earlier = tokens - 3
    left = arrays(page)["magnitude"][0, earlier + 1 :].prod(0)
    page.tab.locator("#chat-view .text span").nth(earlier).dispatch_event("mouseover")
    said = page.tab.locator("#chat-view .share").inner_text()
    mean, best = re.search(r"(\S+)% is left on average .*, (\S+)% in the best", said).groups()
    assert float(mean) == pytest.approx(100 * left.mean(), abs=0.6)
    assert float(best) == pytest.approx(100 * left.max(), abs=0.6)
    assert f"channel {left.argmax()}." in said
    line = page.tab.locator("#chat-view .text span").nth(earlier)
    alpha = float(line.evaluate("e => e.style.getPropertyValue('--best')").split(",")[-1][:-1])
    assert alpha == pytest.approx(left.max(), abs=0.01)  # seen, whatever the mean has become


def test_a_turn_loads_only_what_is_new(page):
    page.ask("the first message")
    first = page.finished()
    columns, texts = [], []

    def count(route):
        answer = route.fetch()
        if isinstance(sent := answer.json(), dict) and "columns" in sent:
            columns.append(len(base64.b64decode(sent["columns"])) // (2 * page.channels))
            texts.extend(sent["pieces"])
        route.fulfill(response=answer)

    page.tab.route(QUESTIONS, count)
    page.ask("the second")
    tokens = page.finished()
    page.tab.unroute(QUESTIONS)
    assert tokens - first <= sum(columns) <= tokens - first + 1  # the last text may have grown
    assert len(texts) == sum(columns)
    shown = page.tab.locator("#chat-view .text").evaluate("e => e.textContent")
    assert "the first message" in shown
    page.painted()
    for layer in (0, 2):  # the other one was not asked for before
        page.tab.select_option("#chat-view .layer", index=layer)
        page.tab.wait_for_function(has(tokens))
        page.painted()
        assert page.tab.evaluate(COLUMNS, 0) == [tokens, tokens, page.channels]


def test_channels_do_not_bleed_into_each_other(page):
    page.set_tokens(24)
    page.choose("slow")  # more channels than pixels
    page.ask("colours")
    page.finished()
    page.painted()
    assert page.view("heatmaps.pictures[0].row") == 2
    assert page.tab.evaluate(FOREIGN_COLOURS) == 0
    assert "means of 2 channels" in page.tab.locator("#chat-view .stack").inner_text()
    page.tab.locator("#chat-view .magnitude").hover(position={"x": 40, "y": 20})
    assert "mean of channels " in page.tab.locator("#chat-view .tip").inner_text()


def test_hover_and_click_stay_in_sight_on_a_small_screen(new_page):
    page = new_page(viewport={"width": 1280, "height": 720})
    page.set_tokens(300)
    page.ask("small")
    page.finished()
    picture = page.tab.locator("#chat-view .magnitude")
    picture.hover(position={"x": 100, "y": 100})
    tip = page.tab.locator("#chat-view .tip")
    assert tip.inner_text().startswith("token ")
    box = tip.bounding_box()
    assert 0 <= box["y"] < box["y"] + box["height"] <= 720
    for x in (5, 300, 600):
        picture.click(position={"x": x, "y": 100})
        assert page.tab.evaluate("scrollY") == 0
    chosen = page.tab.locator("#chat-view .text span.selected").bounding_box()
    text = page.tab.locator("#chat-view .text").bounding_box()
    assert text["y"] <= chosen["y"] <= text["y"] + text["height"] - 10  # it scrolls itself


@pytest.mark.parametrize(
    ("zoom", "scroll", "tokens"),
    [
        (0, 0, 60),
        (3, 203, 200),
        pytest.param(0, 0, 500, marks=pytest.mark.slow),
        pytest.param(3, 0, 60, marks=pytest.mark.slow),
    ],
)
def test_painting_what_is_new_gives_what_painting_all_gives(page, zoom, scroll, tokens):
    page.set_tokens(1024)
    page.choose("slow")  # some ten tokens an answer of the server
    page.tab.evaluate(ZOOM, zoom)
    page.ask("now")
    page.tab.wait_for_function(has(tokens // 2))
    page.tab.locator("#chat-view .text span").nth(tokens // 2 - 1).dispatch_event("click")
    page.tab.evaluate(SCROLL, scroll)
    page.tab.wait_for_function(has(tokens))
    asked = []

    def one_answer(route):  # without marks, as new ones make everything be painted
        asked.append(route)
        if len(asked) == 1:
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"resets": None})

    page.tab.route(QUESTIONS, one_answer)
    while len(asked) < 2:  # a question comes after the answer to the one before
        page.tab.wait_for_timeout(10)
    page.painted()
    assert not page.view("done")
    assert page.tab.evaluate(AS_SHOWN_ANEW) == []
    asked[1].continue_()
    page.tab.unroute(QUESTIONS)


def test_hover_names_the_token_under_the_pointer_when_zoomed_and_scrolled(page):
    zoom, width, left, rows = 8, 48, 323, page.channels
    page.ask("zoom")
    page.finished()
    page.tab.evaluate(ZOOM, zoom)
    page.tab.evaluate(SCROLL, left)
    page.painted()
    canvas = page.tab.locator("#chat-view .magnitude")
    box, pieces = canvas.bounding_box(), page.view("pieces")
    for x, row in ((3, 5), (100, 40), (250, 2)):  # below the marks
        token, y = int((left + x) / width), int(box["height"] * (row + 0.5) / rows)
        canvas.hover(position={"x": x, "y": y})
        tip = page.tab.locator("#chat-view .tip").inner_text()
        text = json.dumps(pieces[token]["text"], ensure_ascii=False)
        assert tip.startswith(f"token {token} {text} · channel {row} ")
        shown, held = page.tab.evaluate(COLOURS, [x, y, token, row])
        assert shown == held


def test_the_chosen_layer_stays_for_the_next_message(page):
    page.ask("one")
    page.finished()
    page.tab.select_option("#chat-view .layer", index=2)
    page.ask("two")
    assert page.view("layer") == 2
    page.finished()
    assert page.tab.locator("#chat-view .layer").input_value() == "2"
    assert page.view("layer") == 2


def test_the_view_waits_for_a_server_without_an_answer(page):
    page.set_tokens(300)
    asked = []

    def nothing(route):
        asked.append(route)
        route.fulfill(content_type="application/json", body="null")

    page.tab.route(QUESTIONS, nothing)
    page.ask("patience")
    while len(asked) < 5:
        page.tab.wait_for_timeout(10)
    assert not page.view("done")
    page.tab.unroute(QUESTIONS)
    assert page.finished() > 300


def test_a_token_is_selected_before_it_is_drawn(page):
    page.ask("soon")
    page.finished()
    page.painted()
    page.tab.evaluate(f"{view()}.text.clear()")  # as before the frame that draws it
    page.tab.evaluate(f"{view()}.select(3)")
    assert page.tab.locator("#chat-view .selected").get_attribute("data-token") == "3"


def test_keys_select_and_zoom_but_for_those_of_the_browser(page):
    page.ask("keys")
    tokens = page.finished()
    chosen = page.tab.locator("#chat-view .text span.selected")
    text = page.tab.locator("#chat-view .text")
    for key, expected in (("Home", 0), ("Control+ArrowRight", 0), ("End", tokens - 1)):
        text.press(key)
        assert chosen.get_attribute("data-token") == str(expected)
    widths = []
    for key in ("+", "+", "+", "-", "Control++"):
        page.tab.locator("#chat-view .magnitude").press(key)
        widths.append(page.view("heatmaps.shown.width"))
    assert widths[0] < widths[1] < widths[2]
    assert widths[1] == widths[3] == widths[4]


def test_resets_are_marked_whichever_layer_is_shown(page, arrays):
    page.ask("resets")
    page.finished()
    expected = resets(arrays(page)["magnitude"])
    assert expected
    for layer in (1, 2, 1, 0):
        assert page.tab.evaluate(SWITCH, layer) == page.tab.evaluate(MARKED) == expected


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
    assert page.said("bot") == ["\ufffd" * 5]


def test_the_picture_has_the_canvases_with_axes_legends_text_and_a_name(page, download):
    page.ask("What is in the `picture`, ../..?")
    page.finished()
    page.painted()
    assert download(page, "npz")[0].name == "a-What-is-in-the-picture.npz"
    shown = [Image.open(BytesIO(base64.b64decode(png))) for png in page.tab.evaluate(CANVASES)]
    file, _ = download(page, "png")
    assert file.name == "a-What-is-in-the-picture-layer-1.png"
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    ground = pixels[0, 0]
    left, top, gap, line = 76, 14, 14, 20
    width = shown[0].width
    assert pixels.shape[1] == left + width + gap
    written = [pixels[top : top + line]]  # the title
    top += line
    for canvas in shown:
        held = np.asarray(canvas.convert("RGBA")).astype(int)
        band = pixels[top + line : top + line + canvas.height, left : left + width]
        opaque = held[..., 3] == 255
        assert (band[opaque] == held[opaque][:, :3]).all()
        written += [pixels[top : top + line, left:]]  # caption and legend
        written += [pixels[top + line : top + line + canvas.height, :left]]  # numbers of rows
        top += line + canvas.height + gap
    written += [pixels[top - gap : top + line, left:], pixels[top + 2 * line :]]  # tokens, text
    for part in written:
        assert (part != ground).any(2).sum() > 20


def test_the_arrays_are_of_this_run(page, arrays):
    page.ask("arrays")
    tokens = page.finished()
    held = arrays(page)
    shape = (page.layers, tokens, page.channels)
    assert held["magnitude"].shape == held["phase"].shape == shape
    assert held["averages"].shape == (tokens, page.layers)
    np.testing.assert_allclose(held["averages"], held["magnitude"].mean(2).T, atol=1e-5)
    assert 0 < held["magnitude"].min() < held["magnitude"].max() < 1
    assert np.abs(held["phase"]).max() <= np.pi + 1e-5
    assert held["phase"].std() > 0.01
    texts = [piece["text"].rstrip("\0") for piece in page.view("pieces")]  # as NumPy keeps them
    assert held["texts"].tolist() == texts
