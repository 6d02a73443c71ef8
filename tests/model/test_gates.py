"""The gates: their gradients, precision and values at the start."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.models import SIZES, time_mixing
from mlx.utils import tree_flatten

from mlx_gateloop.model.gates import StateTransitionLinear, input_scale, projection
from mlx_gateloop.ops import gate_loop


def test_polar_abs_has_a_gradient_where_z_is_zero():
    layer = time_mixing(gate="polar_abs")
    for name in ("gamma_proj", "theta_proj"):
        layer[name].weight = mx.zeros((SIZES["hidden_size"], SIZES["hidden_size"]))
    x = mx.random.normal((1, 5, SIZES["hidden_size"]))
    transition = layer.transition(x, layer.project(x))
    np.testing.assert_allclose(mx.exp(transition.first), np.full(x.shape, 0.5), rtol=1e-6)
    assert not mx.any(transition.second)
    _, gradients = nn.value_and_grad(layer, lambda x: (layer(x) ** 2).sum())(x)
    assert all(np.isfinite(np.array(gradient)).all() for _, gradient in tree_flatten(gradients))


def test_projections_start_lecun_normal():
    mx.random.seed(1)
    linear = projection(nn.Linear, 256, 128, bias=True)
    assert abs(linear.weight.std().item() * 16 - 1) < 0.02
    assert abs(linear.weight.mean().item()) < 0.002
    beyond = (mx.abs(linear.weight) * 16 > 2.5).mean().item()  # flax's Dense draws none of these
    assert beyond == pytest.approx(0.0124, rel=0.1)
    assert not mx.any(linear.bias)
    assert "bias" not in projection(StateTransitionLinear, 4, 4, bias=False)


def test_fixed_transitions_start_as_spread_as_projected_ones():
    layer = time_mixing(hidden_size=4096, transition="fixed", bias=False)
    for vector in (layer.gamma, layer.theta):
        assert abs(vector.std().item() - 1) < 0.05
        assert abs(vector.mean().item()) < 0.05


@pytest.mark.parametrize("transition", ["data_controlled", "fixed"])
@pytest.mark.parametrize("longest", [60, 1e9])
@pytest.mark.parametrize(
    "heads", [{}, {"num_heads": 4}, {"num_heads": 64, "transition_per": "head"}]
)
def test_half_lives_and_phases_spread_and_the_state_keeps_the_variance(transition, heads, longest):
    mixing = time_mixing(hidden_size=256, transition=transition, longest_half_life=longest, **heads)
    gamma = mixing.gamma if transition == "fixed" else mixing.gamma_proj.bias
    half_lives = math.log(2) / np.log1p(np.exp(-np.array(gamma, np.float64)))
    assert 0.999 <= half_lives.min() < 1.4
    assert longest * 0.75 < half_lives.max() <= longest * 1.0002
    assert np.median(np.log(half_lives)) == pytest.approx(math.log(longest) / 2, rel=0.25)
    phases = mixing.theta if transition == "fixed" else mixing.theta_proj.bias
    assert 0.00999 <= mx.min(phases).item() < 0.02
    assert 2.5 < mx.max(phases).item() <= math.pi
    assert mx.median(phases).item() == pytest.approx(math.sqrt(0.01 * math.pi), rel=0.6)
    taken = -np.expm1(-2 * math.log(2) / half_lives).repeat(256 // len(half_lives))
    variance = np.array(mixing.k_proj.weight).var(1) * 256 / taken
    assert variance.mean() == pytest.approx(1, rel=0.05)
    assert mx.var(mixing.v_proj.weight).item() * 256 == pytest.approx(1, rel=0.05)


def test_a_tied_key_is_the_only_scale():
    mixing = time_mixing(hidden_size=256, input_gate="tied", longest_half_life=30, input_scale=True)
    assert mx.var(mixing.v_proj.weight).item() * 256 == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("gate", ["polar", "real"])
def test_a_scaled_input_gives_the_state_the_variance_of_one_input(gate):
    """At every half-life, and with transitions that change from token to token."""
    layer = time_mixing(hidden_size=512, gate=gate, longest_half_life=30, input_scale=True)
    states = {}
    layer.observe = lambda q, key, v, transition, mask: states.update(
        h=gate_loop(mx.ones_like(q), key, v, transition)[1]
    )
    layer(mx.random.normal((4, 400, 512)))
    variance = mx.var(states["h"], axis=0).sum(axis=0)  # [P, B, D] -> [D]
    assert mx.mean(mx.sum(states["h"] ** 2, axis=1)).item() == pytest.approx(1, rel=0.1), variance


def test_the_input_scale_is_exact_and_its_gradient_bounded_where_nothing_is_forgotten():
    gamma = np.array([-100, -30, -1, 0, 1, 8, 17, 30, 75], np.float32)
    exact = 1 / (1 + np.exp(-gamma.astype(np.longdouble)))
    rest = 1 / (1 + np.exp(gamma.astype(np.longdouble)))  # 1 - |a|
    expected = np.sqrt(rest * (1 + exact))
    scale, gradient = input_scale(mx.array(gamma)), mx.grad(lambda g: input_scale(g).sum())
    np.testing.assert_allclose(scale, expected.astype(np.float32), rtol=1e-5, atol=1e-20)
    slope = (-(exact**2) / (1 + exact) * expected).astype(np.float32)
    np.testing.assert_allclose(gradient(mx.array(gamma)), slope, rtol=1e-5, atol=1e-20)
    beyond = mx.array([100.0, 1000.0])  # 1 - |a| is 0 in float32
    assert mx.all((input_scale(beyond) > 0) & (input_scale(beyond) < 1e-18))
    assert not mx.any(gradient(beyond))


@pytest.mark.parametrize("transition", ["data_controlled", "fixed", "lru", "s4d_lin", "s5"])
def test_the_transition_is_float32_and_unquantized(transition):
    layer = time_mixing(hidden_size=64, transition=transition)
    x = mx.random.normal((1, 5, 64))

    def parts(dtype):
        layer.set_dtype(dtype)
        a = layer.transition(x.astype(dtype), layer.project(x.astype(dtype)))
        assert a.first.dtype == a.second.dtype == mx.float32
        return mx.stack([a.first, a.second])

    exact = parts(mx.float32)
    nn.quantize(layer, group_size=32, bits=4)
    assert type(layer.q_proj) is nn.QuantizedLinear
    # In float32, but for the rounding of a product of other shape.
    np.testing.assert_allclose(parts(mx.float32), exact, rtol=1e-5, atol=1e-6)
    x = x.astype(mx.bfloat16)
    rounded = parts(mx.bfloat16)
    assert layer(x).dtype == mx.bfloat16
    np.testing.assert_allclose(rounded, parts(mx.float32), rtol=1e-5, atol=1e-6)
