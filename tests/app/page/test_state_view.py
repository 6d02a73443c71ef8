"""The view's questions to the server: bounded work, and no trust in a request."""

import asyncio
import os
import threading

import numpy as np
import pytest
from helpers.traces import left
from mlx_gateloop.app.generation.run import Run
from mlx_gateloop.app.page import state_view
from mlx_gateloop.app.page.sharing import file_name
from mlx_gateloop.app.page.updates import MAX_COLUMNS

from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch.trace import Trace

from .conftest import LONG

NUMBERS = {
    "updates_since": 3,
    "row": 2,
    "arrays": 0,
    "share": 1,
    "probe": 3,
}  # how many numbers each function's request has


@pytest.fixture
def served(engine, updates):
    """The functions that the server offers to the page, by name."""
    component = state_view.state_view(engine, updates, "view")
    return {name: getattr(component, name) for name in NUMBERS}


@pytest.fixture
def ask(served):
    return lambda name, *request: asyncio.run(served[name](list(request)))


def test_a_row_is_that_of_the_trace(ask, engine, finished):
    run = finished(engine.submit("tiny", "abc", Sampling(0), 6))
    row = ask("row", run.id, 1, 5)
    assert {len(row[name]) for name in ("retention", "best", "channel", "full")} == {6}
    assert row["retention"] == pytest.approx(run.trace.retention(5), rel=1e-3)
    kept = left(run.trace, 1, 5)
    assert row["best"] == pytest.approx(kept.max(1), abs=1e-4)
    assert row["channel"] == kept.argmax(1).tolist()
    assert len(row["candidates"]) == 8


def test_tokens_in_groups_have_no_query(ask, run, make_trace):
    rates = np.random.default_rng(0).random((2, LONG, 3), np.float32)
    run.trace = make_trace(rates, memory=60_000)
    row = ask("row", run.id, 0, LONG - 1)
    for name in ("retention", "full"):
        assert row[name][0] is None
        assert row[name][-1] is not None
    best = left(run.trace, 0, LONG - 1).argmax(1)
    assert row["channel"][-200:] == best[-200:].tolist()  # nothing is left of earlier tokens


@pytest.mark.parametrize("name", NUMBERS)
def test_whatever_a_page_sends_is_no_traceback(served, run, name):
    numbers = NUMBERS[name]
    good = [run.id, *[0] * numbers]
    assert asyncio.run(served[name](good))
    wrong = [None, 5, "x", {}, {"0": run.id}, [], [run.id], [*good, 1]]
    wrong += [[id, *good[1:]] for id in (None, [run.id], "unknown")]
    for value in ("0", None, [], 0.5, True, float("nan"), {}) if numbers else ():
        wrong += [[*good[:i], value, *good[i + 1 :]] for i in range(1, len(good))]
    wrong += [[run.id, layer, *good[2:]] for layer in (-1, 2, 10**30) if numbers]
    for request in wrong:
        if request != good:
            assert asyncio.run(served[name](request)) is None
    if name == "updates_since":  # a page may be ahead of the server, or behind
        for index in (-(10**30), -1, LONG, 10**30):
            answer = asyncio.run(served[name]([run.id, 0, index, index]))
            assert len(answer["pieces"]) in (0, MAX_COLUMNS)
    if name == "row":
        assert asyncio.run(served[name]([run.id, 0, LONG])) is None


def test_rows_and_files_are_made_one_at_a_time_beside_the_loop(served, run, monkeypatch):
    go_on, working, calls = threading.Event(), set(), []

    def slow(*arguments):
        working.add(threading.current_thread())
        calls.append(arguments)
        assert go_on.wait(120)
        working.discard(threading.current_thread())
        return np.ones(1), np.zeros(1, int)

    monkeypatch.setattr(Trace, "best", slow)

    async def work():
        many = [asyncio.create_task(served["row"]([run.id, 0, n])) for n in range(1, 41)]
        while not calls:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.01)  # the loop goes on
        assert len(calls) == len(working) == 1
        assert await served["arrays"]([run.id]) is None  # the queue is full
        assert await served["updates_since"]([run.id, 0, 0, 0])  # but the view goes on
        go_on.set()
        answers = await asyncio.gather(*many)
        assert sum(answer is not None for answer in answers) == 16
        assert await served["arrays"]([run.id])

    asyncio.run(work())
    assert threading.main_thread() not in working


def test_a_file_is_written_once_and_few_are_kept(ask, run, engine, monkeypatch, tmp_path):
    monkeypatch.setattr(state_view, "download_folder", lambda: tmp_path)
    saved = []
    save = Trace.save
    monkeypatch.setattr(Trace, "save", lambda *a: (saved.append(a), save(*a)))
    run.prompt = "What does `str.split` do?\n" * 9
    file = tmp_path / run.id / "tiny-What-does-str-split-do-What-does-str-split.npz"
    address = ask("arrays", run.id)
    assert ask("arrays", run.id) == address == f"gradio_api/file={file}"
    assert len(saved) == 1
    with np.load(file) as arrays:
        assert arrays["magnitude"].shape == (2, LONG, 3)
    run.done = False  # while it runs, what there is
    for tokens in range(LONG - 6, LONG):
        run.trace = run.trace.branch(tokens)
        assert ask("arrays", run.id).endswith(f"-{tokens}-tokens.npz")
        assert len(list(tmp_path.rglob("*.npz"))) == 1  # a run has one
    for number in range(state_view.KEPT_ARRAYS + 2):
        other = Run("tiny", prompt=f"../{number}")
        other.trace = run.trace
        engine.recorded.put(other)
        assert ask("arrays", other.id).startswith(f"gradio_api/file={tmp_path}/{other.id}/tiny-")
    assert len(list(tmp_path.iterdir())) == state_view.KEPT_ARRAYS


def test_a_file_has_the_last_tokens_of_a_long_run(ask, run, monkeypatch, tmp_path):
    monkeypatch.setattr(state_view, "download_folder", lambda: tmp_path)
    monkeypatch.setattr(state_view, "MAX_ARRAYS", 8 * 6 * 50)
    for number in range(state_view.KEPT_ARRAYS):
        (tmp_path / f"old{number}").mkdir()
        os.utime(tmp_path / f"old{number}", (2**33, 2**33))  # the clock ran ahead
    ask("arrays", run.id)
    assert len(list(tmp_path.iterdir())) == state_view.KEPT_ARRAYS
    with np.load(next((tmp_path / run.id).iterdir())) as arrays:
        assert arrays["magnitude"].shape == (2, 50, 3)
        assert arrays["texts"].tolist() == [str(n) for n in range(LONG - 50, LONG)]
        assert np.array_equal(arrays["averages"], run.trace.averages(LONG - 50))


def test_a_full_disk_is_no_traceback(ask, run, monkeypatch, tmp_path, caplog):
    def full(trace, path, texts, start):
        path.write_bytes(b"the beginning")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_view, "download_folder", lambda: tmp_path)
    monkeypatch.setattr(Trace, "save", full)
    assert ask("arrays", run.id) is None
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.rglob("*.npz*"))


def test_a_file_is_named_after_model_and_prompt():
    assert file_name(Run("models/mine", prompt="What's *this*?")) == "mine-What-s-this"
    assert file_name(Run("demo")) == "demo"
    assert file_name(Run("..", prompt="\u202e/../é_x")) == "é-x"
    assert file_name(Run("..")) == "gateloop"
