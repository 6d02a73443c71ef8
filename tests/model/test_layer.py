"""`gl.GateLoop`: the model's time mixing as a layer that returns its state."""

import mlx.core as mx
import pytest
from helpers.models import close

import mlx_gateloop as gl

SIZE = 8
OPTIONS = {
    "paper": {},
    "fixed": {"transition": "fixed", "longest_half_life": 30},
    "real heads": {"gate": "real", "heads": 2, "output_gate": True},
    "polar_abs": {"gate": "polar_abs", "norm": "rms"},
    "lru": {"transition": "lru", "norm": "layer"},
    "other options": {"state_activation": "tanh", "mixing_size": 12, "bias": False},
}


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def layer(request):
    mx.random.seed(0)
    return gl.GateLoop(SIZE, **request.param)


def test_it_is_the_models_time_mixing_after_a_norm(layer):
    x, cache = mx.random.normal((2, 11, SIZE)), [None]
    y, state = layer(x)
    close(y, layer.time_mixing(layer.time_norm(x), None, cache))
    assert mx.array_equal(state, cache[0])
    assert state.dtype == mx.float32
    assert layer(x.astype(mx.bfloat16))[1].dtype == mx.float32


def test_a_state_continues_the_text(layer):
    x = mx.random.normal((2, 11, SIZE))
    for reverse in (False, True):
        y, last = layer(x, reverse=reverse)
        parts = mx.split(x, [4, 5], axis=1)
        state, outputs = None, []
        for part in reversed(parts) if reverse else parts:
            output, state = layer(part, state, reverse=reverse)
            outputs.append(output)
        close(mx.concatenate(outputs[::-1] if reverse else outputs, axis=1), y)
        close(state, last)


def test_a_masked_token_is_left_out(layer):
    x = mx.random.normal((1, 6, SIZE))
    kept = [1, 2, 4, 5]
    y, state = layer(x, mask=mx.array([[n in kept for n in range(6)]]))
    expected, last = layer(x[:, mx.array(kept)])
    close(y[:, mx.array(kept)], expected)
    close(state, last)


def test_what_cannot_be_used_is_named():
    with pytest.raises(ValueError, match="gate must be"):
        gl.GateLoop(SIZE, gate="elliptic")
    for name, value in {"conv_size": 4, "dropout": 0.5, "norm_position": "post"}.items():
        with pytest.raises(ValueError, match=f"{name} must be .* in a layer"):
            gl.GateLoop(SIZE, **{name: value})
    for name, value in {"mixer": "softmax", "num_heads": 2}.items():
        with pytest.raises(TypeError, match=name):
            gl.GateLoop(SIZE, **{name: value})
    layer = gl.GateLoop(SIZE)
    for shape in [(2, SIZE), (1, 2, SIZE + 1), (1, 1, 2, SIZE)]:
        with pytest.raises(ValueError, match=r"x: expected the shape \[B, L, 8\], got"):
            layer(mx.zeros(shape))
    with pytest.raises(ValueError, match="h0"):
        layer(mx.zeros((1, 2, SIZE)), mx.zeros((2, 2, SIZE)))
