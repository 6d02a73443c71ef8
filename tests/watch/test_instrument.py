"""Instrumentation of models: it relies on names of mlx-lm, and leaves everything as it was."""

from importlib import import_module
from inspect import signature

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.recurrent import parts, recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.watch.instrument import _called, _unwatched

PROMPT = [5, 6, 7, 8, 9, 3, 1, 2, 4]
TYPES = ("qwen3_next", "mamba2", "recurrent_gemma", "bailing_moe_linear")


def test_mlx_and_mlx_lm_offer_no_way_to_observe_a_recurrence():
    """If this fails, use their way in place of the patch in `watch/instrument.py`."""
    assert not [name for name in vars(nn.Module) if "hook" in name or "observe" in name]
    for name in TYPES:
        layer = next(m for m in recurrent_model(name).modules() if set(_called(type(m))))
        call = signature(type(layer).__call__).parameters
        assert call.keys() <= {"self", "x", "inputs", "hidden_states", "mask", "cache", "offset"}


def test_recordings_of_two_models_of_a_type_overlap():
    one, other, bystander = (recurrent_model("mamba2", seed=seed) for seed in range(3))
    expected = gl.watch.trace_of(other, np.array(PROMPT)).magnitude(1)
    module = import_module("mlx_lm.models.mamba2")
    before = module.ssm_update
    first, last = gl.watch.recording(one), gl.watch.recording(other)
    first_recorder = first.__enter__()
    with last as recorder:
        for model in (one, bystander, other, one):
            model(mx.array([PROMPT]), model.make_cache())
        first.__exit__(None, None, None)
        other(mx.array([PROMPT]), other.make_cache())
        assert module.ssm_update is not before
    assert module.ssm_update is before
    for trace in (first_recorder.trace, recorder.trace):
        assert trace.tokens == 2 * len(PROMPT)
        assert np.array_equal(trace.magnitude(1, 0, 9), trace.magnitude(1, 9))
    assert np.array_equal(recorder.trace.magnitude(1, 0, 9), expected)


def test_a_pass_that_fails_and_an_error_in_the_block_leave_nothing():
    model = recurrent_model("mamba2")
    before, recorders = parts(model), []

    def fail():
        with gl.watch.recording(model) as recorder:
            recorders.append(recorder)
            with pytest.raises(TypeError):
                model(mx.array([PROMPT]), [model.make_cache()[0], 7])
            model(mx.array([PROMPT]), model.make_cache())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert parts(model) == before
    assert recorders[0].trace.tokens == len(PROMPT)


def test_a_model_is_recorded_once_at_a_time():
    model = recurrent_model("mamba2")
    refused = pytest.raises(ValueError, match="already being recorded")
    with gl.watch.recording(model), refused, gl.watch.recording(model):
        pass
    with gl.watch.recording(model) as recorder:
        model(mx.array([PROMPT]), model.make_cache())
    assert recorder.trace.tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_5"])
def test_a_model_keeps_its_taps_and_runs_take_turns(name):
    model = recurrent_model(name)
    before, instrumented = parts(model), gl.watch.Instrumented(model)
    one, other = gl.watch.Recording(instrumented), gl.watch.Recording(instrumented, window=0)
    caches = {recorder: model.make_cache() for recorder in (one, other)}
    for start, recorder in [(0, one), (1, other), (3, one), (4, one)]:
        with instrumented.to(recorder):
            model(mx.array([PROMPT[start : start + 3]]), caches[recorder])
    model(mx.array([PROMPT]), model.make_cache())  # nobody listens
    one.drop()  # the last pass
    assert one.catch_up(behind=1).tokens == 3
    assert other.trace.tokens == 3
    again = gl.watch.Recording(instrumented, trace=one.trace.branch(6))
    with instrumented.to(again):
        model(mx.array([PROMPT[6:]]), caches[one])
    assert again.trace.tokens == 9
    assert one.trace.tokens == 6
    assert np.array_equal(again.trace.magnitude(0, 0, 6), one.trace.magnitude(0))
    instrumented.detach()
    assert parts(model) == before


def test_attention_is_known_by_its_name_or_by_that_of_its_class():
    class CrossAttention(nn.Module):
        pass

    model = nn.Module()
    model.mixer, model.attn, model.mlp = CrossAttention(), nn.Linear(2, 2), nn.Linear(2, 2)
    assert _unwatched(model, {}).keys() == {"mixer", "attn"}
