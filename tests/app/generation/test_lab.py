"""The Memory lab's answers: those of the models, whatever a page sends."""

import asyncio
import base64
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from mlx_gateloop.app.generation import lab
from mlx_gateloop.app.generation.run import Run
from mlx_gateloop.app.generation.worker import Job
from mlx_gateloop.app.page.lab import FOLDER, memory_lab

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.models import load_model


def test_answers_and_strengths_are_those_of_the_models():
    cells = [4, 5, 3, 3, 0, 5, 5, 2]
    solved = lab.Lab(FOLDER).solve(cells)
    assert solved["right"] == [4, 0, 3, 1, 1, 0, 0, 2]
    for model, name in enumerate(lab.NAMES):
        loaded = load_model(FOLDER / name)
        assert solved["answers"][model] == loaded(mx.array([cells]))[0].argmax(-1).tolist()
        codes = np.frombuffer(base64.b64decode(solved["left"][model]), np.uint8)
        trace = gl.watch.trace_of(loaded, np.array(cells))
        shares = [trace.retention(n) for n in range(8)]
        expected = [np.sqrt(share / share.max()) for share in shares]
        assert codes / 255 == pytest.approx(np.concatenate(expected), abs=0.003)


@pytest.mark.parametrize("cells", [[5], [0], [5] * 64, [5, *[4] * 15] * 4])
def test_the_ends_of_what_may_be_asked(cells):
    solved = lab.Lab(FOLDER).solve(lab.check_cells(cells))
    assert len(solved["right"]) == len(solved["answers"][1]) == len(cells)
    assert solved["answers"][0] == solved["right"]


def test_what_cannot_be_read_is_refused_in_one_line():
    lists = {"None": None, "{1: 2}": {1: 2}, "0": [], "65": [1] * 65, "'</": "</script>" * 999}
    for got, cells in lists.items():
        line = refusal(lab.check_cells, cells)
        assert line.startswith(f"cells: expected a list of 1 to 64, got {got}")
    for got, cell in {"6": 6, "True": True, "-1": -1, "1.0": 1.0, "'a\\nb'": "a\nb"}.items():
        line = refusal(lab.check_cells, [0, cell])
        assert line == f"cells: expected 0 to 4, or 5 for a reset at position 1, got {got}"
    refusal(lab.check_cells, [10**4000])


def test_a_changed_model_is_refused(tmp_path):
    changed = Path(shutil.copytree(FOLDER, tmp_path / "lab"))
    weights = changed / "fixed" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    line = refusal(lab.Lab(changed).solve, [1])
    assert line.startswith("fixed/model.safetensors: differs from SHA256SUMS")


def test_a_page_gets_answers_or_one_line(engine, make_engine):
    async def ask(engine, *requests):
        return await asyncio.gather(*map(memory_lab(engine).solve, requests))

    good, bad = asyncio.run(ask(engine, [1, 2, 5], {"cells": []}))
    assert good["right"] == [1, 3, 0]
    assert bad == {"error": "cells: expected a list of 1 to 64, got {'cells': []}"}
    (busy,) = asyncio.run(ask(make_engine(queue=0), [1, 2]))
    assert busy["error"].startswith("the server is busy, 0 requests are waiting")


def test_a_question_that_fails_says_no_more_than_that(engine):
    def fail():
        raise OSError("/home/somebody/models")

    with pytest.raises(InputError, match="internal error; see the server's log"):
        asyncio.run(engine.call(fail))
    assert asyncio.run(engine.call(lambda: 7)) == 7


def test_a_page_that_leaves_asks_no_more(make_engine):
    engine = make_engine(active=1)
    done = []

    async def leave():
        def steps():
            while not done:
                yield

        engine._put(Job(Run(""), None, steps()))
        asked = asyncio.create_task(engine.call(lambda: done.append("asked")))
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert not engine._waiting
        done.append("left")

    asyncio.run(leave())
    assert asyncio.run(engine.call(lambda: 7)) == 7
    assert done == ["left"]
