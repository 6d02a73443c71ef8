"""Softmax mixing against section 3.4 of the paper and Vaswani et al., in float64."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import softmax_attention
from mlx_lm.models.cache import KVCache

import mlx_gateloop as gl
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import SoftmaxMixing
from mlx_gateloop.ops.transition import Transition

SIZE, LENGTH = 8, 71  # blocks of queries and a part of one
VARIANTS = {
    "paper": {}, "max-headed": {"num_heads": SIZE}, "a head": {"transition_per": "head"},
    "real": {"gate": "real"}, "polar_abs": {"gate": "polar_abs"},
    "negative": {"gate": "polar_abs", "ablation": "phase", "transition_per": "head"},
    "fixed": {"transition": "fixed"}, "retnet": {"transition": "retnet"},
    "lru": {"transition": "lru", "input_gate": "sigmoid"},
    "tied": {"gate": "real", "input_gate": "tied"}, "attention": {"transition": "none"},
}  # fmt: skip


def mixing(**options):
    mx.random.seed(0)
    sizes = {"hidden_size": SIZE, "num_heads": 2, "mixer": "softmax"}
    return SoftmaxMixing(LayerArgs(**sizes | options))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_it_is_the_operators_softmax_form_with_its_gradient(options):
    layer = mixing(**options)
    x = mx.random.normal((2, LENGTH, SIZE))

    def operator(x):
        q, k, v, a = layer._inputs(x, layer.project(x))
        return gl.ops.gate_loop_softmax(q * q.shape[-1] ** -0.5, k, v, a).reshape(x.shape)

    np.testing.assert_allclose(layer(x), operator(x), atol=5e-6)
    ours, theirs = (mx.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (layer, operator))
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_rotary_positions_are_those_of_the_publication():
    """Channels j and j + K/2 make the complex number that position n turns by n base^(-2j/K)."""
    layer = mixing(transition="none", rope_theta=100.0)
    x = mx.random.normal((1, LENGTH, SIZE))
    q, k, v = (np.array(part[0], np.float64) for part in layer._inputs(x, layer.project(x))[:3])
    turns = np.arange(LENGTH)[:, None] * 100.0 ** (-2 * np.arange(2) / 4)

    def turned(x):
        z = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * turns)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    arrays = (z.swapaxes(0, 1)[None] for z in (turned(q) / 2, turned(k), v, np.ones_like(v)))
    y = softmax_attention(*arrays)[0].swapaxes(0, 1).reshape(LENGTH, SIZE)
    np.testing.assert_allclose(layer(x)[0], y, atol=2e-6)


def test_half_precision_keeps_transitions_whole():
    layer, cache = mixing(), KVCache()
    layer.set_dtype(mx.bfloat16)
    y = layer(mx.random.normal((1, 3, SIZE)).astype(mx.bfloat16), None, cache)
    assert y.dtype == cache.values.dtype == mx.bfloat16
    assert cache.keys.dtype == mx.float32


@pytest.mark.parametrize("form", ["sigmoid", "polar", "cartesian"])
def test_the_logarithm_of_a_transition_is_its_value(form):
    first, second = mx.array([-30.0, -2.0, -0.1]), mx.array([0.0, -2.0, 9.0])
    for transition in (Transition(form, first, second), Transition(form, first)):
        planes = [np.array(p, np.float64) for p in transition.planes()]
        log, *phase = (np.array(p, np.float64) for p in transition.logarithm())
        value = np.exp(log + 1j * sum(phase))
        np.testing.assert_allclose(value, planes[0] + 1j * sum(planes[1:]), rtol=1e-5, atol=1e-6)
