"""The page of a trace: whole in one file, whatever the words are."""

import base64
import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers.browser import CHROMIUM, chromium
from helpers.models import tiny_model, tokens
from helpers.node import needs_node, node
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.watch import sharing
from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.trace import Trace

HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>", "\u202eabc\u2066", "\ud800 alone", "\u2028\u2029\x00\x1b[31m",
    "{title} {data} \\u003c", "&lt;b&gt; 日本",
]  # fmt: skip


def recorded(model, length, window=1000):
    with gl.watch.recording(model, window=window) as recorder:
        mx.eval(model(tokens(length)))
    return recorder.trace


def data_of(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


def test_the_page_has_the_numbers_of_the_trace():
    trace = recorded(tiny_model(), 12)
    kinds = ["special", "system", "system", *["prompt"] * 4, *["answer"] * 5]
    other = gl.watch.Counterfactual([4, 5], ["7", " x", "9", "10", "11"])
    texts = [str(n) for n in range(12)]
    kept, data = [0, *range(3, 12)], data_of(gl.watch.share(trace, texts, kinds, forgotten=[other]))
    assert data["texts"] == [str(n) for n in kept]  # without the system prompt
    left = np.frombuffer(base64.b64decode(data["left"]), np.uint8).astype(float)
    for n, token in enumerate(kept):
        row, left = left[: n + 1], left[n + 1 :]
        share = trace.retention(token)[kept[: n + 1]]
        assert ((row - 1) / 254) ** 2 == pytest.approx(share / share.max(), abs=0.005)
    assert not len(left)
    for layer in data["layers"]:
        codes = np.frombuffer(base64.b64decode(layer["codes"]), np.uint8)
        assert codes.shape == (layer["rows"] * len(kept),)
    rows = {"left_out": [2, 3], "answer": other.answer, "gone": [1], "added": [1]}
    assert data["forgotten"] == [rows]
    assert len(data_of(gl.watch.share(trace, texts, kinds, with_system=True))["texts"]) == 12


def test_channels_that_are_alike_share_a_row():
    trace = Trace([Layer("layer", "gate loop")], 1 << 24, 8)
    rate = np.tile(np.geomspace(1e-4, 1, 384, dtype=np.float32), (3, 1))
    reads = dict.fromkeys(("query", "key"), np.ones((3, 384, 1), np.float32))
    trace.append([Columns(rate[:, ::-1].copy(), None, reads)])
    (layer,) = data_of(gl.watch.share(trace, ["a", "b", "c"]))["layers"]
    assert layer["rows"] == sharing.ROWS
    codes = np.frombuffer(base64.b64decode(layer["codes"]), np.uint8).reshape(3, -1)
    assert (np.diff(codes[0].astype(int)) >= 0).all()  # long memory on top
    exact = np.sort(trace.columns(0)[0, 0]).reshape(sharing.ROWS, 4).mean(1)
    assert codes[0] == pytest.approx(exact, abs=0.51)


def test_what_is_not_recorded_is_unknown():
    trace = recorded(tiny_model(), 9, window=4)
    left = base64.b64decode(data_of(gl.watch.share(trace, ["x"] * 9))["left"])
    assert [code > 0 for code in left[-9:]] == [False] * 5 + [True] * 4


def test_hostile_texts_stay_texts():
    title = "</title><script>alert(1)</script>\ud800a\u202eb\x1b\n"
    page = gl.watch.share(recorded(tiny_model(), len(HOSTILE)), HOSTILE, title=title)
    data = data_of(page)
    assert page.isascii()
    assert "a\\u202eb\\u001b\\u000a</title>" in page  # it cannot turn its direction
    assert "omitted" not in page.partition("<script")[0]
    assert data["texts"] == HOSTILE
    assert page.count("<script") == page.count("</script>") == 2
    assert "alert(1)</script>" not in page
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert data.keys() == {"texts", "kinds", "left", "rates", "layers", "forgotten"}
    assert data["layers"][0].keys() == {"kind", "rows", "codes"}  # no name, no path


def test_a_notebook_shows_a_trace_in_a_frame():
    trace = recorded(tiny_model(), 5)
    trace.texts = ["<b>", "two"]
    shown = trace._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert shown.count("<") == 2  # the frame's: all of the page is escaped


@pytest.mark.parametrize(("options", "message"), [
    ({"texts": ["a"]}, "texts: expected 3, one per token, got 1"),
    ({"texts": [1, 2, 3]}, "texts: expected"), ({"kinds": ["answer"]}, "kinds: expected 3"),
    ({"kinds": ["answer", "answer", "</script>"]}, "kinds: expected prompt, answer"),
    ({"start": 3}, "start: expected 0 to 2, got 3"),
    ({"start": -1}, "start: expected 0 to 2, got -1"),
    ({"forgotten": [gl.watch.Counterfactual([3], [])]}, "forgotten: expected positions"),
])  # fmt: skip
def test_wrong_input_is_one_line(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}[^\n]*$"):
        gl.watch.share(recorded(tiny_model(), 3), **{"texts": ["a", "b", "c"], **options})


def test_too_many_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(sharing, "MAX_TOKENS", 4)
    trace = recorded(tiny_model(), 9)
    with pytest.raises(ValueError, match=r"use a start of 5 or more$"):
        gl.watch.share(trace, ["x"] * 9)
    assert len(data_of(gl.watch.share(trace, ["x"] * 9, start=5))["texts"]) == 4


@needs_node
def test_modules():
    node("--test", *sorted(Path(__file__).parents[1].rglob("*.test.js")))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_in_a_browser(tmp_path):
    pytest.importorskip("playwright")
    texts = [f" {n}" for n in range(10)] + HOSTILE
    trace = recorded(tiny_model(), len(texts))
    kinds = ["special", *["prompt"] * 9, *["answer"] * len(HOSTILE)]
    other = gl.watch.Counterfactual([3], [*HOSTILE[:2], "new"])
    file = tmp_path / "view.html"
    file.write_text(gl.watch.share(trace, texts, kinds, forgotten=[other]), "utf-8")
    problems = []
    with chromium() as browser:
        tab = browser.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: problems.append(request.url))
        tab.goto(file.as_uri())
        assert tab.title() == "What a model remembers"
        assert HOSTILE[0] in tab.inner_text(".words")
        assert tab.locator(".words [data-kind=special]").is_hidden()
        assert tab.locator(".original [data-kind=gone]").count() == len(HOSTILE) - 2
        assert tab.inner_text(".without [data-kind=added]") == "new"
        assert "\u202e" not in tab.inner_text(".words")
        # Going back to a word shows what was left then.
        tab.click(".words [data-token='4']")
        assert tab.locator(".words .later").count() == len(texts) - 5
        expected = trace.retention(4)
        expected = 0.16 + 0.84 * np.sqrt(expected / expected.max())
        tab.mouse.move(1, 1)
        shown = [
            float(tab.eval_on_selector(f"[data-token='{m}']", "e => getComputedStyle(e).opacity"))
            for m in range(5)
        ]
        assert shown == pytest.approx(expected, abs=0.01)
        assert problems == [file.as_uri()]  # one file, and no other


def test_an_answer_without_words_is_compared_with_the_last_answer_alone():
    kinds = ["prompt", "answer", "special", "prompt", "answer", "answer"]
    other = gl.watch.Counterfactual([3], ["5", "6"])
    texts = [str(n) for n in range(6)]
    page = gl.watch.share(recorded(tiny_model(), 6), texts, kinds, forgotten=[other])
    (forgotten,) = data_of(page)["forgotten"]
    assert (forgotten["gone"], forgotten["added"]) == ([0], [1])


ANSWER = st.lists(st.sampled_from("abc"), max_size=8)


@given(ANSWER, ANSWER)
@settings(max_examples=60)
def test_what_two_answers_share_is_unmarked(before, after):
    trace, other = recorded(tiny_model(), len(before) + 1), gl.watch.Counterfactual([0], after)
    kinds = ["prompt", *["answer"] * len(before)]
    (marks,) = data_of(gl.watch.share(trace, ["?", *before], kinds, forgotten=[other]))["forgotten"]
    one, two = (
        [text for index, text in enumerate(texts) if index not in marks[name]]
        for texts, name in ((before, "gone"), (after, "added"))
    )
    assert one == two
    assert bool(one) != {*before}.isdisjoint(after)
    assert before != after or not marks["gone"]
