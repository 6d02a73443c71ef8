"""The models that GateLoop generalises, each against its own published equations in float64."""

from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from helpers import models
from mlx.utils import tree_flatten

from mlx_gateloop.model import layers
from mlx_gateloop.model.constant_transitions import FREQUENCIES, hippo

SIZE, LENGTH = models.SIZES["hidden_size"], 23
STATE_SPACES = ["s4d_lin", "s4d_inv", "s5"]
HEADS = [SIZE, 2]


def time_mixing(transition, heads=None, **options):
    return models.time_mixing(transition=transition, num_heads=heads, **options)


def run(layer):
    """Query, key and value `[L, H, K]` of a random text in float64, the output and the state."""
    x = mx.random.normal((1, LENGTH, layer.args.hidden_size))
    cache = [None]
    found = [layer.q_proj(x), layer.k_proj(x), layer.v_proj(x), layer(x, None, cache)]
    state = np.array(cache[0][0], np.float64)
    state = np.tensordot([1, 1j][: len(state)], state, 1)
    shape = LENGTH, layer.args.heads, -1
    return *(np.array(each, np.float64).reshape(shape) for each in found), state


def constants(layer):
    """The learned arrays of the transition, `[H, K]` or `[H, 1]`, float64."""
    arrays = tree_flatten(layer.constant.parameters(), destination={})
    heads = layer.args.heads
    return {name: np.array(x, np.float64).reshape(heads, -1) for name, x in arrays.items()}


def check_recurrence(layer, a, factor, phase=1.0):
    """x_n = a x_{n-1} + factor k_n^T v_n and y_n = Re(q_n conj(phase) x_n), step by step."""
    q, k, v, y, state = run(layer)
    x = np.zeros((*k.shape[1:], v.shape[-1]), complex)
    for n in range(LENGTH):
        x = np.expand_dims(a, -1) * x + (factor * k[n])[..., None] * v[n][..., None, :]
        expected = np.einsum("hk,hkv->hv", q[n] * np.conj(phase), x).real
        np.testing.assert_allclose(y[n], expected, atol=2e-5)
    turned = np.expand_dims(np.conj(phase), -1) * x
    np.testing.assert_allclose(state.reshape(x.shape), turned, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_linear_attention_is_a_sum(heads):
    check_recurrence(time_mixing("linear_attention", heads), 1.0, 1.0)


@pytest.mark.parametrize(("options", "backend"), [
    ({}, "auto"), ({"transition": "linear_attention"}, "auto"), ({"ablation": "transition"}, "mlx"),
])  # fmt: skip
def test_only_the_ablation_is_kept_from_the_kernels(options, backend, monkeypatch):
    monkeypatch.setattr(layers, "gate_loop", operator := Mock(wraps=layers.gate_loop))
    models.time_mixing(**options)(mx.ones((1, 2, SIZE)))
    assert operator.call_args.kwargs["backend"] == backend


@pytest.mark.parametrize("heads", [4, 2, 1])
def test_retnet_is_its_parallel_form(heads):
    """Q = (X W_Q) Theta, K = (X W_K) conj(Theta), (Q K^T * D) V (arXiv 2307.08621, equation 5)."""
    q, k, v, y, _ = run(time_mixing("retnet", heads))
    size = SIZE // heads
    theta = 10000.0 ** (-2 * np.repeat(np.arange(size / 2), 2) / size)
    n = np.arange(LENGTH)
    turned = np.exp(1j * n[:, None] * theta)
    for head, gamma in enumerate(1 - 2.0 ** (-5 - np.arange(heads))):
        D = np.tril(gamma ** (n[:, None] - n))
        scores = (q[:, head] * turned) @ (k[:, head] * turned.conj()).T
        np.testing.assert_allclose(y[:, head], (scores * D).real @ v[:, head], atol=3e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_lru_is_its_recurrence(heads):
    """x_k = Lambda x_{k-1} + exp(gamma_log) B u_k, y_k = Re(C x_k), step by step."""
    layer = time_mixing("lru", heads)
    w = constants(layer)
    eigenvalues = np.exp(-np.exp(w["nu"]) + 1j * np.exp(w["theta"]))
    check_recurrence(layer, eigenvalues, np.exp(w["log_scale"]))


def test_lru_starts_uniform_on_the_unit_disk_and_normalised():
    layer = time_mixing("lru", hidden_size=4096, projection_bias=False)
    square = np.array(mx.exp(2 * layer.constant.transition().first))
    quarters = [0.25, 0.5, 0.75]
    for uniform in (square, np.array(layer.constant.transition().second) / 6.28):
        np.testing.assert_allclose(np.quantile(uniform, quarters), quarters, atol=0.05)
        assert 0 < uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    np.testing.assert_allclose(layer.constant.input_factor(), np.sqrt(1 - square), atol=1e-4)


@pytest.mark.parametrize("transition", STATE_SPACES)
@pytest.mark.parametrize("heads", HEADS)
def test_state_spaces_are_their_recurrence(transition, heads):
    """x_k = exp(Delta A) x_{k-1} + (Delta A)^-1 (exp(Delta A) - 1) Delta B u_k, y_k = Re(C x_k).

    B is the key and C the query, turned by the phase of the hold.
    """
    layer = time_mixing(transition, heads)
    w = constants(layer)
    A, step = -np.exp(w["log_decay"]) + 1j * w["frequency"], np.exp(w["log_step"])
    hold = (np.exp(step * A) - 1) / (step * A) * step
    check_recurrence(layer, np.exp(step * A), hold, hold / abs(hold))


def test_s4d_starts_at_its_published_frequencies():
    n = np.arange(16)
    np.testing.assert_allclose(FREQUENCIES["s4d_lin"](16), np.pi * n)
    np.testing.assert_allclose(FREQUENCIES["s4d_inv"](16), 32 / np.pi * (32 / (2 * n + 1) - 1))
    one, two = time_mixing("s4d_lin"), time_mixing("s4d_lin", 2)
    np.testing.assert_allclose(one.constant.frequency, np.pi * np.arange(8), rtol=1e-6)
    np.testing.assert_allclose(two.constant.frequency, np.pi * np.tile(np.arange(4), 2), rtol=1e-6)
    np.testing.assert_allclose(mx.exp(one.constant.log_decay), np.full(8, 0.5), rtol=1e-6)


@pytest.mark.parametrize("states", [1, 2, 9, 32])
def test_s5_starts_at_the_eigenvalues_of_hippo_n(states):
    n = np.arange(2 * states)
    root = np.sqrt(2 * n + 1)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(n + 1)
    rank_one = np.sqrt(n + 0.5)
    eigenvalues = np.linalg.eigvals(legs + np.outer(rank_one, rank_one))
    eigenvalues = eigenvalues[eigenvalues.imag > 0]
    np.testing.assert_allclose(eigenvalues.real, np.full(states, -0.5), atol=1e-9)
    np.testing.assert_allclose(hippo(states), np.sort(eigenvalues.imag), rtol=1e-9)


@pytest.mark.parametrize("transition", STATE_SPACES)
def test_step_sizes_start_log_uniform(transition):
    layer = time_mixing(transition, 512, hidden_size=1024, projection_bias=False)
    steps = np.exp(np.array(layer.constant.log_step))
    assert steps.shape == ((1024,) if transition == "s5" else (512,))
    middle = np.quantile(steps, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(np.log10(middle), [-2.5, -2, -1.5], atol=0.15)
    assert 0.001 <= steps.min() < 0.0012 < 0.085 < steps.max() <= 0.1


@pytest.mark.parametrize("transition", ["lru", *STATE_SPACES])
@pytest.mark.parametrize("longest", [4.0, 100.0, 1e9])
def test_half_lives_at_the_start_are_spread_up_to_the_longest(transition, longest):
    """LRU's from one token on, the state spaces' from a hundredth of the longest."""
    heads = 256 if transition == "s4d_lin" else None
    layer = time_mixing(transition, heads, hidden_size=256, longest_half_life=longest)
    half_lives = np.log(2) / -np.array(layer.constant.transition().first, np.float64)
    shortest = 1 if transition == "lru" else longest / 100
    assert shortest * 0.999 <= half_lives.min() < shortest * 1.5
    assert longest * 0.7 < half_lives.max() <= longest * 1.001
    middle, spread = np.log(np.sqrt(shortest * longest)), np.log(longest / shortest)
    assert np.median(np.log(half_lives)) == pytest.approx(middle, abs=0.06 * spread)
    factor = np.array(layer.constant.input_factor())
    if transition == "lru":
        np.testing.assert_allclose(factor**2, -np.expm1(-2 * np.log(2) / half_lives), rtol=1e-4)
