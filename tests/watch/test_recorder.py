"""Recordings hold what the layers did."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import tiny_model

from mlx_gateloop.ops import Transition
from mlx_gateloop.ops.attention import decay
from mlx_gateloop.watch import Recorder, Trace, recording_cache, trace_of
from mlx_gateloop.watch.measures import RATE

LAYERS, CHANNELS = 2, 8


def model(**options):
    sizes = {"hidden_size": CHANNELS, "intermediate_size": 8, "num_hidden_layers": LAYERS}
    return tiny_model(**{"vocab_size": 11} | sizes | options)


def read(made, tokens, caches, recorder):
    logits = made(mx.array([tokens]), caches)
    mx.eval(logits, recorder.step())
    recorder.take()
    return logits


def transitions(made, tokens):
    """Queries, keys and complex transitions of every layer, taken from the layers themselves."""
    x, found = made.model.embed_tokens(mx.array([tokens])), []
    for block in made.layers:
        mixing, normed = block.time_mixing, block.time_norm(x)
        shape = mixing._heads(mixing.q_proj(normed)).shape
        planes = [
            np.array(mx.broadcast_to(p, shape))[0] for p in mixing.transition(normed).planes()
        ]
        a = planes[0] + 1j * (planes[1] if len(planes) == 2 else 0)
        q, k = (np.array(p(normed))[0] for p in (mixing.q_proj, mixing.k_proj))
        found.append((q, k, a.reshape(len(tokens), -1)))
        x = block(x)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transition": "fixed"},
        {"gate": "polar_abs"},
        {"gate": "real"},
        {"num_heads": 2},
        {"num_heads": 2, "transition": "fixed"},
        {"num_heads": 2, "transition_per": "head"},
        {"num_heads": 2, "transition_per": "head", "transition": "fixed"},
        {"num_heads": 2, "transition": "retnet"},
        {"transition": "lru"},
        {"num_heads": 2, "mixer": "softmax"},
    ],
)
def test_the_record_is_the_layers_transition(options):
    made, tokens = model(**options), [1, 5, 2, 2, 7, 0, 10]
    caches, recorder = recording_cache(made)
    logits = read(made, tokens[:4], caches, recorder)
    read(made, tokens[4:5], caches, recorder)
    read(made, tokens[5:], caches, recorder)
    assert recorder.trace.tokens == len(tokens)
    for layer, (_, _, a) in enumerate(transitions(made, tokens)):
        magnitude, phase = recorder.trace.magnitude(layer), recorder.trace.phase(layer)
        assert magnitude == pytest.approx(np.abs(a), abs=1e-6)
        assert magnitude * np.exp(1j * phase) == pytest.approx(a, abs=2e-6)
        assert (np.abs(phase) <= np.float32(np.pi)).all()
    # and it changes nothing
    assert mx.array_equal(logits, made(mx.array([tokens[:4]]), made.make_cache()))


@pytest.mark.parametrize("options", [{}, {"num_heads": 2}])
def test_remembered_is_surrogate_attention(options):
    made, tokens = model(**options), [3, 1, 4, 1, 5, 9, 2, 6]
    caches, recorder = recording_cache(made)
    read(made, tokens, caches, recorder)
    for layer, (q, k, a) in enumerate(transitions(made, tokens)):
        for n in range(len(tokens)):
            magnitude, full = recorder.trace.remembered(layer, n)
            for m in range(n + 1):
                left = np.prod(a[m + 1 : n + 1], axis=0)
                assert magnitude[m] == pytest.approx(np.abs(left).mean(), rel=1e-5)
                expected = (q[n] * left * k[m]).real.sum()
                assert full[m] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_remembered_agrees_with_the_operators_attention():
    made, tokens = model(), [3, 1, 4, 1, 5, 9, 2, 6]
    caches, recorder = recording_cache(made)
    read(made, tokens, caches, recorder)
    q, k, a = transitions(made, tokens)[0]
    planes = tuple(mx.array(p.astype(np.float32))[None, :, :, None] for p in (a.real, a.imag))
    real = np.array(decay(planes)[0])[0, -1, :, :, 0]
    expected = (q[-1] * real * k).sum(-1)
    assert recorder.trace.remembered(0, len(tokens) - 1)[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("extreme", [-200.0, -20.0, 20.0, 60.0])
def test_extreme_gates_are_exact(extreme):
    trace, gamma = Trace(1, 1), mx.full((1, 1, 1), extreme)
    recorder = Recorder(trace)
    recorder.report(gamma, gamma, Transition.sigmoid(gamma, gamma))
    recorder.step()
    recorder.take()
    rate = -np.log(trace.magnitude(0).astype(np.float64)) if extreme > -80 else -extreme
    stored = trace._read(RATE, 0, 0, 1)[0, 0]
    assert stored == pytest.approx(np.logaddexp(0.0, -extreme), rel=1e-5)
    assert rate == pytest.approx(np.logaddexp(0.0, -extreme), rel=1e-4, abs=1e-7)


def test_the_trace_of_a_sequence_is_read_at_once():
    made, tokens = model(), [1, 5, 2, 2, 7]
    trace = trace_of(made, np.array(tokens, np.int32))
    assert trace.tokens == 5
    for layer, (_, _, expected) in enumerate(transitions(made, tokens)):
        a = trace.magnitude(layer) * np.exp(1j * trace.phase(layer))
        assert a == pytest.approx(expected, abs=1e-5)


def test_the_trace_of_a_model_without_transitions_is_empty():
    made = model(mixer="softmax", transition="none")
    assert trace_of(made, np.array([1, 2])).tokens == 0
