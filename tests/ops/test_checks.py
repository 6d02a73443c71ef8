"""Bad arguments get a ValueError that names the argument, what was expected and what came."""

from functools import partial

import mlx.core as mx
import pytest

import mlx_gateloop as gl
from mlx_gateloop.ops import pointwise
from mlx_gateloop.ops.backends import ALIASES, BACKENDS, choose

FLAT = mx.zeros((2, 5, 3))
HEADS = mx.zeros((2, 5, 3, 4))
WHOLE = mx.zeros((2, 5, 3), mx.int32)


def gate_loop(q=FLAT, k=FLAT, v=FLAT, a=FLAT, **options):
    return gl.gate_loop(q, k, v, a, **options)


def convolve(x, a):
    return gl.ops.convolve(x, x, x, a)


def cross_entropy(targets):
    return pointwise.cross_entropy(mx.zeros((3, 4)), targets)


sigmoid, polar = gl.Transition.sigmoid, gl.Transition.polar


@pytest.mark.parametrize(("function", "arguments", "message"), [
    (gate_loop, [mx.zeros((5, 3))], r"q: expected \[B, L, D\] or .* \(5, 3\)"),
    (gate_loop, [mx.zeros(())], r"q: expected \[B, L, D\] or .* \(\)"),
    (gate_loop, [FLAT.astype(mx.complex64)], "q: expected a real floating-point"),
    (gate_loop, [None], "q: expected a real floating-point array, got NoneType"),
    (gate_loop, [FLAT, FLAT[:, 1:]], r"k: expected shape \(2, 5, 3\) .* got \(2, 4, 3\)"),
    (gate_loop, [FLAT, FLAT, WHOLE], "v: expected a real .*int32"),
    (gate_loop, [HEADS, HEADS], r"v: expected \[B, L, H, V\] = \(2, 5, 3, V\)"),
    (gate_loop, {"a": FLAT[..., :1]}, r"a: expected shape \(2, 5, 3\) .* got \(2, 5, 1\)"),
    (gate_loop, {"a": WHOLE}, "a: expected a floating-point or complex64"),
    (gate_loop, {"a": "a"}, "a: expected a floating-point .* got str"),
    (gate_loop, [HEADS] * 3 + [HEADS[..., 2:]], r"a: .*, 4\) or .*, 1\), got .*, 2\)"),
    (gate_loop, {"h0": mx.zeros((2, 3))}, r"h0: expected shape \(2, 1, 3\) .* got \(2, 3\)"),
    (gate_loop, {"h0": mx.zeros((2, 2, 3), mx.complex64)}, "h0: expected a real"),
    (gate_loop, {"h0": 1.5}, "h0: expected a real .* got float"),
    (gate_loop, {"h0": mx.zeros(())}, r"h0: expected shape \(2, 1, 3\) .* got \(\)"),
    (gate_loop, {"mask": [True]}, "mask: expected a bool array, got list"),
    (gate_loop, {"mask": mx.ones((2, 5))}, "mask: expected a bool array, got .*float32"),
    (gate_loop, {"mask": mx.ones((2, 4), mx.bool_)}, r"mask: .*\(2, 5\) .* \(2, 4\)"),
    (gate_loop, {"mode": "fast"}, "mode: expected one of auto, recurrent, .* got 'fast'"),
    (gate_loop, {"backend": "tpu"}, "backend: expected one of auto, mlx, .* got 'tpu'"),
    (gl.linear_scan, [FLAT, None], "x: expected a floating-point .* got NoneType"),
    (gl.linear_scan, [mx.zeros(3)] * 2, r"x: expected \[B, L, ...\], got shape \(3,\)"),
    (gl.linear_scan, [FLAT, FLAT[:, 1:]], r"a: expected shape \(2, 4, 3\) .* got \(2, 5, 3\)"),
    (gl.linear_scan, [FLAT, FLAT, mx.zeros(3)], r"h0: expected shape \(2, 3\) .* got \(3,\)"),
    (gl.ops.gate_loop_softmax, [FLAT, HEADS, FLAT, FLAT], "k: expected shape"),
    (convolve, [FLAT, FLAT], r"a: expected shape \(3,\) .* got \(2, 5, 3\)"),
    (convolve, [FLAT, WHOLE[0, 0]], "a: expected a floating-point or complex64 array"),
    (convolve, [HEADS, mx.zeros(4)], r"a: expected \(3, 4\) or \(3, 1\), got \(4,\)"),
    (gl.Transition.of, [WHOLE], "a: expected a floating-point"),
    (sigmoid, [mx.array([1j])], "gamma: expected a real"),
    (sigmoid, [mx.zeros(2), mx.zeros(3)], r"theta: .*\(2,\), got \(3,\)"),
    (polar, [mx.zeros(2), mx.array([1, 2])], "phase: expected a real"),
    (cross_entropy, [mx.zeros((3, 4))], r"targets: expected integers of shape \(3,\)"),
    (cross_entropy, [mx.zeros((3,))], r"targets: expected integers of shape \(3,\)"),
])  # fmt: skip
def test_what_does_not_fit_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        function(**arguments) if isinstance(arguments, dict) else function(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["cpu", "metal", "cuda"])
def test_a_backend_that_is_not_there_says_so(backend, monkeypatch):
    for name in ("cpu", "metal", "cuda"):
        absent = BACKENDS[name]._replace(why_missing=lambda: "not built")
        monkeypatch.setitem(BACKENDS, name, absent)
    for call in (gate_loop, partial(gl.linear_scan, FLAT, FLAT)):
        with pytest.raises(RuntimeError, match=f"backend '{backend}' is missing: .*available: mlx"):
            call(backend=backend)


def test_backends_keep_their_old_names():
    assert choose("ops") is choose("mlx") is BACKENDS["mlx"]
    assert ALIASES["native"] == "cpu"


def test_the_default_asks_nothing_of_backends_it_would_not_take(monkeypatch):
    if mx.default_device().type != mx.cpu:
        pytest.skip("a GPU is the default device")
    # reading a package's metadata takes a quarter of a millisecond, at each layer of each token
    for name in ("metal", "cuda"):
        asked = BACKENDS[name]._replace(why_missing=lambda: pytest.fail("asked of a GPU"))
        monkeypatch.setitem(BACKENDS, name, asked)
    assert gate_loop()[0].shape == FLAT.shape
