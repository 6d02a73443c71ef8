"""The layers against the paper's equations written out in float64 NumPy."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_gateloop.layers import (
    Block,
    ChannelMixing,
    StateTransitionLinear,
    TimeMixing,
    projection,
)

SIZE = 8


def time_mixing(**options):
    mx.random.seed(0)
    defaults = {
        "hidden_size": SIZE,
        "num_heads": SIZE,
        "transition": "data_controlled",
        "gate": "polar",
        "output_gate": False,
        "bias": True,
    }
    return TimeMixing(**defaults | options)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected_time_mixing(layer, x, heads, gate):
    """The paper's recurrence, one token after another."""
    weights = {name: np.array(w, np.float64) for name, w in flat(layer).items()}

    def linear(name):
        return x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)

    def transition_input(name):
        if name in weights:
            return np.broadcast_to(weights[name], x.shape)
        return linear(name)

    gamma = transition_input("gamma")
    theta = np.zeros_like(gamma) if gate == "real" else transition_input("theta")
    if gate == "polar_abs":
        gamma, theta = np.hypot(gamma, theta), np.arctan2(theta, gamma)
    a = sigmoid(gamma) * np.exp(1j * theta)
    split = (*x.shape[:2], heads, SIZE // heads)
    q, k, v, a = (z.reshape(split) for z in (linear("q"), linear("k"), linear("v"), a))
    h = np.zeros((x.shape[0], heads, SIZE // heads, SIZE // heads), complex)
    y = np.zeros(split)
    for n in range(x.shape[1]):
        h = a[:, n, :, :, None] * h + k[:, n, :, :, None] * v[:, n, :, None, :]
        y[:, n] = np.einsum("bhk,bhkv->bhv", q[:, n], h).real
    y = y.reshape(x.shape)
    if "out_proj.weight" in weights:
        gate_ = linear("gate")
        y = (y * gate_ * sigmoid(gate_)) @ weights["out_proj.weight"].T
        y = y + weights.get("out_proj.bias", 0)
    return y


def flat(module):
    return tree_flatten(module.parameters(), destination={})


@pytest.mark.parametrize("gate", ["polar", "polar_abs", "real"])
@pytest.mark.parametrize("transition", ["data_controlled", "fixed"])
@pytest.mark.parametrize("heads", [SIZE, 2])
@pytest.mark.parametrize("output_gate", [False, True])
def test_time_mixing_is_the_papers_recurrence(gate, transition, heads, output_gate):
    layer = time_mixing(gate=gate, transition=transition, num_heads=heads, output_gate=output_gate)
    x = mx.random.normal((2, 11, SIZE))
    expected = expected_time_mixing(layer, np.array(x, np.float64), heads, gate)
    np.testing.assert_allclose(layer(x), expected, atol=2e-5)


def test_without_bias_there_is_none():
    layer = time_mixing(bias=False, output_gate=True)
    assert not [name for name in flat(layer) if name.endswith("bias")]
    x = mx.random.normal((1, 3, SIZE))
    expected = expected_time_mixing(layer, np.array(x, np.float64), SIZE, "polar")
    np.testing.assert_allclose(layer(x), expected, atol=2e-5)


@pytest.mark.parametrize("gate", ["polar", "real"])
def test_masked_tokens_leave_the_state_alone(gate):
    layer = time_mixing(gate=gate)
    x = mx.random.normal((1, 6, SIZE))
    mask = mx.array([[False, True, True, False, True, True]])
    padded, alone = [None], [None]
    y = layer(x, mask, padded)
    expected = layer(x[:, mx.array([1, 2, 4, 5])], None, alone)
    np.testing.assert_allclose(y[:, mx.array([1, 2, 4, 5])], expected, atol=1e-6)
    np.testing.assert_allclose(padded[0], alone[0], atol=1e-6)
    assert padded[0].dtype == mx.float32


def test_a_mask_that_is_no_array_means_no_padding():
    layer = time_mixing()
    x = mx.random.normal((1, 4, SIZE))
    assert mx.array_equal(layer(x, "causal"), layer(x))


def test_polar_abs_has_a_gradient_where_z_is_zero():
    layer = time_mixing(gate="polar_abs")
    for name in ("gamma_proj", "theta_proj"):
        layer[name].weight = mx.zeros((SIZE, SIZE))
    x = mx.random.normal((1, 5, SIZE))
    magnitude, phase = (mx.exp(layer.transition(x).first), layer.transition(x).second)
    np.testing.assert_allclose(magnitude, np.full(x.shape, 0.5), rtol=1e-6)
    assert not mx.any(phase)
    _, gradients = nn.value_and_grad(layer, lambda x: (layer(x) ** 2).sum())(x)
    assert all(
        np.isfinite(np.array(g)).all() for g in tree_flatten(gradients, destination={}).values()
    )


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_the_transition_is_computed_in_float32(dtype):
    layer = time_mixing()
    layer.set_dtype(dtype)
    x = mx.random.normal((1, 4, SIZE)).astype(dtype)
    transition = layer.transition(x)
    layer.set_dtype(mx.float32)
    exact = layer.gamma_proj(x.astype(mx.float32))
    assert transition.first.dtype == transition.second.dtype == mx.float32
    np.testing.assert_allclose(transition.first, exact, rtol=1e-5, atol=1e-6)
    layer.set_dtype(dtype)
    assert layer(x).dtype == dtype


def test_projections_start_lecun_normal():
    mx.random.seed(1)
    linear = projection(nn.Linear, 256, 128, bias=True)
    assert abs(linear.weight.std().item() * 16 - 1) < 0.02
    assert abs(linear.weight.mean().item()) < 0.002
    assert not mx.any(linear.bias)
    assert "bias" not in projection(StateTransitionLinear, 4, 4, bias=False)


def test_fixed_transitions_start_as_spread_as_projected_ones():
    mx.random.seed(1)
    layer = TimeMixing(4096, 4096, "fixed", "polar", False, False)
    for vector in (layer.gamma, layer.theta):
        assert abs(vector.std().item() - 1) < 0.05
        assert abs(vector.mean().item()) < 0.05


def test_quantizers_pass_the_transition_by():
    layer = time_mixing(hidden_size=32, num_heads=32)
    assert not hasattr(layer.gamma_proj, "to_quantized")
    layer.gamma_proj.input_feat = mx.zeros((2, 3))  # what AWQ does
    nn.quantize(layer, group_size=32, bits=4)
    assert type(layer.q_proj) is nn.QuantizedLinear
    assert type(layer.gamma_proj) is type(layer.theta_proj) is StateTransitionLinear
    assert set(layer.gamma_proj.parameters()) == {"weight", "bias"}


def test_channel_mixing_is_an_exact_gelu_network():
    mx.random.seed(2)
    layer = ChannelMixing(SIZE, 12, bias=True)
    x = mx.random.normal((2, 3, SIZE))
    inner = np.array(layer.up_proj(x), np.float64)
    gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    expected = gelu @ np.array(layer.down_proj.weight, np.float64).T
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_block_norms_before_mixing_and_skips_around_it():
    mx.random.seed(3)
    block = Block(time_mixing(), ChannelMixing(SIZE, 12, True), SIZE, 1e-5, dropout=0.5)
    block.eval()
    x = mx.random.normal((1, 4, SIZE))
    middle = x + block.time_mixing(block.time_norm(x))
    expected = middle + block.channel_mixing(block.channel_norm(middle))
    assert mx.array_equal(block(x), expected)
    block.train()
    assert not mx.array_equal(block(x), expected)
