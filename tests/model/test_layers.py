"""The layers against the paper's equations written out in float64 NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import parameters, time_mixing

from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import Block, evaluating, make_norm

SIZE = 8


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {"identity": lambda x: x, "tanh": np.tanh, "sigmoid": sigmoid}


def expected_time_mixing(layer, x):
    """The paper's recurrence, one token after another."""
    args = layer.args
    weights = {name: np.array(w, np.float64) for name, w in parameters(layer).items()}

    def linear(name):
        return x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)

    def transition_input(name):
        if name in weights:
            return np.broadcast_to(weights[name], (*x.shape[:2], len(weights[name])))
        return linear(name)

    def heads(z):
        return z.reshape(*z.shape[:2], args.heads, -1)

    gamma = transition_input("gamma")
    is_real = args.gate == "real" or args.ablation == "phase"
    theta = np.zeros_like(gamma) if is_real else transition_input("theta")
    if args.gate == "polar_abs":
        gamma, theta = np.hypot(gamma, theta), np.arctan2(theta, gamma)
    a = heads(sigmoid(gamma) * np.exp(1j * theta))
    if args.ablation == "transition":
        a = np.ones_like(a)
    q = np.broadcast_to(weights["query"], x.shape) if args.query == "constant" else linear("q")
    q = heads(ACTIVATIONS[args.query_activation](q))
    v = heads(ACTIVATIONS[args.value_activation](linear("v")))
    keys = {
        "linear": lambda: heads(linear("k")), "sigmoid": lambda: heads(sigmoid(linear("k"))),
        "tied": lambda: np.broadcast_to(1 - abs(a), v.shape), "none": lambda: np.ones_like(v),
    }  # fmt: skip
    k = keys[args.input_gate]()
    h = np.zeros((*k[:, 0].shape, v.shape[-1]), complex)
    y = np.zeros(v.shape)
    for n in range(x.shape[1]):
        h = a[:, n, :, :, None] * h + k[:, n, :, :, None] * v[:, n, :, None, :]
        y[:, n] = np.einsum("bhk,bhkv->bhv", q[:, n], ACTIVATIONS[args.state_activation](h.real))
    if args.sub_norm != "head":
        y = y.reshape(*x.shape[:2], -1)
    if args.sub_norm:
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        y = y * weights["sub_norm.weight"] + weights["sub_norm.bias"]
    y = y.reshape(*x.shape[:2], -1)
    if args.output_gate:
        gate = linear("gate")
        y = y * gate * sigmoid(gate)
    if "out_proj.weight" in weights:
        y = y @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0)
    return y


PAPER = {
    f"{gate}, {transition}, {heads} heads": {
        "gate": gate, "transition": transition, "num_heads": heads, "output_gate": heads == 2,
    }
    for gate in ("polar", "polar_abs", "real")
    for transition in ("data_controlled", "fixed")
    for heads in (SIZE, 2)
}  # fmt: skip
VARIANTS = {
    "no bias": {"bias": False, "output_gate": True},
    "lucidrains": {
        "gate": "polar_abs", "transition_per": "head", "mixing_size": 12, "num_heads": 3,
        "sub_norm": True, "output_gate": True, "projection_bias": False,
    },
    "a norm a head": {"num_heads": 2, "sub_norm": "head", "output_gate": True},
    "narrow": {"mixing_size": 4},
    "fixed a head": {"transition": "fixed", "transition_per": "head", "num_heads": 2},
    "max-headed a head": {"transition_per": "head", "gate": "real"}, "phase": {"ablation": "phase"},
    "phase of polar_abs": {"ablation": "phase", "gate": "polar_abs", "num_heads": 4},
    "transition": {"ablation": "transition", "transition_per": "head", "num_heads": 4},
    "constant query": {"query": "constant", "query_activation": "tanh", "num_heads": 2},
    "no key": {"gate": "real", "input_gate": "none", "sub_norm": True, "num_heads": 2},
    "tied": {
        "gate": "real", "input_gate": "tied", "query_activation": "sigmoid",
        "value_activation": "tanh", "state_activation": "tanh", "output_projection": True,
    },
    "tied heads": {"input_gate": "tied", "num_heads": 2, "transition_per": "head"},
    "untied": {
        "gate": "real", "input_gate": "sigmoid", "query_activation": "tanh",
        "value_activation": "sigmoid", "state_activation": "sigmoid", "mixing_size": 12,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", (PAPER | VARIANTS).values(), ids=(PAPER | VARIANTS).keys())
def test_time_mixing_is_its_recurrence(options):
    layer = time_mixing(**options)
    if "sub_norm" in layer:
        layer.sub_norm.weight = mx.random.normal(layer.sub_norm.weight.shape)
        layer.sub_norm.bias = mx.random.normal(layer.sub_norm.bias.shape)
    x = mx.random.normal((2, 11, SIZE))
    expected = expected_time_mixing(layer, np.array(x, np.float64))
    np.testing.assert_allclose(layer(x), expected, atol=5e-5)
    cache = [None]
    steps = [layer(x[:, n : n + 1], None, cache) for n in range(11)]
    np.testing.assert_allclose(mx.concatenate(steps, axis=1), expected, atol=5e-5)


def test_biases_are_where_they_are_asked_for():
    layer = time_mixing(projection_bias=False, output_gate=True)
    with_bias = {name for name in parameters(layer) if name.endswith("bias")}
    assert with_bias == {"gamma_proj.bias", "theta_proj.bias"}
    layer = time_mixing(bias=False, projection_bias=True)
    assert {"q_proj.bias", "k_proj.bias", "v_proj.bias"} <= parameters(layer).keys()
    assert "gamma_proj.bias" not in parameters(layer)


def test_block_norms_before_mixing_and_skips_around_it():
    mx.random.seed(3)
    block = Block(LayerArgs(hidden_size=SIZE, intermediate_size=12, dropout=0.5))
    block.eval()
    x = mx.random.normal((1, 4, SIZE))
    middle = x + block.time_mixing(block.time_norm(x))
    expected = middle + block.channel_mixing(block.channel_norm(middle))
    assert mx.array_equal(block(x), expected)
    block.train()
    assert not mx.array_equal(block(x), expected)
    block.channel_mixing.eval()
    with evaluating(block):
        assert mx.array_equal(block(x), expected)
    assert block.training
    assert not block.channel_mixing.training


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_rms_norm_scales_to_the_root_of_the_size(dtype):
    rms = make_norm(LayerArgs(hidden_size=SIZE, norm="rms"))
    rms.weight = mx.arange(SIZE).astype(dtype)
    unit = np.array([[0.6, 0, 0, 0, 0, 0, 0, 0.8], [SIZE**-0.5] * SIZE, [0.0] * SIZE])
    y = rms(mx.array([[3.0, 0, 0, 0, 0, 0, 0, 4.0], [1e-4] * SIZE, [0.0] * SIZE]).astype(dtype))
    assert y.dtype == dtype
    rtol = 1e-2 if y.itemsize == 2 else 1e-6
    np.testing.assert_allclose(y.astype(mx.float32), unit * SIZE**0.5 * np.arange(SIZE), rtol=rtol)
