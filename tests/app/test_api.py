"""The endpoint for programs: what it answers, and how it refuses."""

import asyncio
import base64
from unittest.mock import AsyncMock

import gradio as gr
import numpy as np
import pytest
from mlx_gateloop.app import api
from mlx_gateloop.app.generation.worker_pool import WorkerPool

from mlx_gateloop.errors import shown
from mlx_gateloop.generate import Sampling


@pytest.fixture
def ask(engine, monkeypatch):
    endpoints = []
    with monkeypatch.context() as patch:
        patch.setattr(api, "api", lambda function, **_: endpoints.append(function))
        api.add_endpoint(engine, "tiny")

    def ask(prompt="abc", **options):
        return asyncio.run(endpoints[0](prompt, **{"temperature": 0, "max_tokens": 6} | options))

    return ask


def refused(ask, *arguments, **options):
    with pytest.raises(gr.Error) as error:
        ask(*arguments, **options)
    assert not error.value.print_exception
    return error.value.message


def test_text_figures_and_transitions(ask, engine, finished):
    expected = finished(engine.submit("tiny", "abc", Sampling(0), 6))
    answer = ask(transitions=True)
    assert answer["text"] == expected.text
    assert (answer["tokens"], answer["prompt_tokens"]) == (6, 3)
    sent = answer["transitions"]
    columns = np.frombuffer(base64.b64decode(sent["columns"]), np.uint8).reshape(sent["shape"])
    assert (columns[1] == expected.trace.columns(1)).all()
    assert np.array(sent["mean_magnitude"]) == pytest.approx(expected.trace.averages(), abs=1e-4)
    as_chat = ask(model="fixed", chat=True, seed=-1)
    assert "transitions" not in as_chat
    assert as_chat["prompt_tokens"] > 20  # with what the template writes


@pytest.mark.parametrize(("options", "message"), [
    ({"temperature": 10**400}, f"temperature: expected a number, got {shown(10**400)}"),
    ({"max_tokens": 1.5}, "max_tokens: expected an integer, got 1.5"),
    ({"max_tokens": 0}, "max_tokens: expected 1 to 1024, got 0"),
    ({"prompt": ["x"]}, "prompt: expected a string, got ['x']"),
    ({"chat": "yes"}, "chat: expected true or false, got 'yes'"),
    ({"transitions": 1}, "transitions: expected true or false, got 1"),
    ({"model": 5}, "model: expected a string, got 5"),
    ({"model": "<'x'>"}, "model: there is no \"<'x'>\"; choose one of: fixed, tiny"),
])  # fmt: skip
def test_a_wrong_argument_is_named_in_one_plain_line(ask, options, message):
    assert refused(ask, **options) == message


def test_transitions_are_limited_in_size(ask, monkeypatch):
    monkeypatch.setattr(api, "MAX_TRANSITIONS", 2 * 2 * 16 * 10)  # 10 tokens
    assert ask(max_tokens=7, transitions=True)["tokens"] == 7
    line = refused(ask, max_tokens=8, transitions=True)
    assert line.startswith("transitions: this model sends at most 10 tokens, ")
    assert "the prompt and the answer have 11; " in line
    assert ask(max_tokens=8)["tokens"] == 8


def test_too_many_transitions_at_once_are_refused(ask, monkeypatch):
    monkeypatch.setattr(WorkerPool, "__call__", AsyncMock(return_value=None))
    assert refused(ask, transitions=True).startswith("transitions: too many requests")
