"""The view's questions to the server: bounded work, and no trust in a request."""

import base64
import io

import numpy as np
import pytest
from helpers.traces import left
from mlx_gateloop.app.page import state_view
from mlx_gateloop.app.page.updates import MAX_COLUMNS

from mlx_gateloop.generate import Sampling

from .conftest import LONG, make_trace


@pytest.fixture
def ask(engine, updates, asking):
    return asking(state_view.state_view(engine, updates, "view"))


def test_a_row_is_that_of_the_trace(ask, engine, finished):
    run = finished(engine.submit("tiny", "abc", Sampling(0), 6))
    row = ask("row", run.id, 1, 5)
    assert {len(row[name]) for name in ("retention", "best", "channel", "full")} == {6}
    assert row["retention"] == pytest.approx(run.trace.retention(5), rel=1e-3)
    kept = left(run.trace, 1, 5)
    assert row["best"] == pytest.approx(kept.max(1), abs=1e-4)
    assert row["channel"] == kept.argmax(1).tolist()
    assert len(row["candidates"]) == 8


def test_tokens_in_groups_have_no_query(ask, run):
    run.trace = make_trace(np.random.default_rng(0).random((2, LONG, 3), np.float32), memory=60_000)
    row = ask("row", run.id, 0, LONG - 1)
    for name in ("retention", "full"):
        assert row[name][0] is None
        assert row[name][-1] is not None
    best = left(run.trace, 0, LONG - 1).argmax(1)
    assert row["channel"][-200:] == best[-200:].tolist()  # nothing is left of earlier tokens


def test_numbers_outside_a_run_have_no_answer(ask, run):
    for name, numbers in {"updates_since": [0, 0], "row": [0], "probe": [0, 0]}.items():
        for layer in (-1, 2, 10**30):
            assert ask(name, run.id, layer, *numbers) is None
    for token in (-1, LONG, 10**30):
        assert ask("row", run.id, 0, token) is None
        assert ask("probe", run.id, 0, token, 0) is None
    assert "no word before" in ask("probe", run.id, 0, 0, 0)["error"]
    for index in (-(10**30), -1, LONG, 10**30):  # a page may be ahead of the server, or behind
        assert len(ask("updates_since", run.id, 0, index, index)["pieces"]) in (0, MAX_COLUMNS)


def test_a_file_has_the_last_tokens_of_a_long_run(ask, run, monkeypatch):
    monkeypatch.setattr(state_view, "MAX_ARRAYS", 8 * 6 * 50)
    run.prompt = "What does `str.split` do?\n" * 9
    answer = ask("arrays", run.id)
    assert answer["name"] == "tiny-What-does-str-split-do-What-does-str-split.npz"
    with np.load(io.BytesIO(base64.b64decode(answer["data"]))) as arrays:
        assert arrays["magnitude"].shape == (2, 50, 3)
        assert arrays["texts"].tolist() == [str(n) for n in range(LONG - 50, LONG)]
        assert np.array_equal(arrays["averages"], run.trace.averages(LONG - 50))
