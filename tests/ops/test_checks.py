"""Bad arguments get a ValueError that names the argument, what was expected and what came."""

import mlx.core as mx
import pytest

import mlx_gateloop as gl
from mlx_gateloop.ops.backends import ALIASES, BACKENDS, choose

FLAT = mx.zeros((2, 5, 3))
HEADS = mx.zeros((2, 5, 3, 4))


def call(**changes):
    arguments = {"q": FLAT, "k": FLAT, "v": FLAT, "a": FLAT, **changes}
    return gl.gate_loop(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": mx.zeros((5, 3))}, r"q: expected \[B, L, D\] or .* \(5, 3\)"),
        ({"k": mx.zeros((2, 4, 3))}, r"k: expected shape \(2, 5, 3\) .* got \(2, 4, 3\)"),
        ({"v": HEADS}, r"v: expected shape \(2, 5, 3\) .* got \(2, 5, 3, 4\)"),
        ({"a": mx.zeros((2, 5, 1))}, r"a: expected shape \(2, 5, 3\) .* got \(2, 5, 1\)"),
        ({"a": mx.zeros((2, 5, 3), mx.int32)}, "a: expected a floating-point or complex64"),
        ({"a": "sigmoid"}, "a: expected .* got str"),
        ({"q": mx.zeros((2, 5, 3), mx.complex64)}, "q: expected a real floating-point"),
        ({"v": mx.zeros((2, 5, 3), mx.int32)}, "v: expected a real .*int32"),
        ({"h0": mx.zeros((2, 3))}, r"h0: expected shape \(2, 1, 3\) .* got \(2, 3\)"),
        ({"h0": mx.zeros((2, 3, 3))}, r"h0: expected shape \(2, 1, 3\) .* got \(2, 3, 3\)"),
        ({"h0": mx.zeros((2, 2, 5))}, r"h0: expected shape \(2, 2, 3\) .* got \(2, 2, 5\)"),
        ({"h0": mx.zeros((2, 2, 3), mx.complex64)}, "h0: expected a real"),
        ({"mask": mx.ones((2, 5))}, "mask: expected a bool array, got dtype mlx.core.float32"),
        ({"mask": mx.ones((2, 4), mx.bool_)}, r"mask: expected shape \(2, 5\) .* \(2, 4\)"),
        ({"mode": "fast"}, "mode: expected one of auto, recurrent, scan, attention, got 'fast'"),
        ({"backend": "tpu"}, "backend: expected one of auto, mlx, .* got 'tpu'"),
        ({"q": HEADS, "k": HEADS}, r"v: expected \[B, L, H, V\] = \(2, 5, 3, V\)"),
        (
            {"q": HEADS, "k": HEADS, "v": HEADS, "a": mx.zeros((2, 5, 3, 2))},
            r"a: expected \(2, 5, 3, 4\) or \(2, 5, 3, 1\), got \(2, 5, 3, 2\)",
        ),
    ],
)
def test_gate_loop(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((mx.zeros(3), mx.zeros(3)), r"x: expected \[B, L, ...\], got shape \(3,\)"),
        ((FLAT, FLAT[:, 1:]), r"a: expected shape \(2, 4, 3\) .* got \(2, 5, 3\)"),
        ((FLAT, FLAT.astype(mx.int32)), "x: expected a floating-point or complex64 array"),
        ((FLAT, FLAT, mx.zeros(3)), r"h0: expected shape \(2, 3\) .* got \(3,\)"),
        ((None, FLAT), "a: expected .* got NoneType"),
    ],
)
def test_linear_scan(arguments, message):
    with pytest.raises(ValueError, match=message):
        gl.linear_scan(*arguments)


def test_softmax_form_checks_the_same_arguments():
    with pytest.raises(ValueError, match="k: expected shape"):
        gl.ops.gate_loop_softmax(FLAT, HEADS, FLAT, FLAT)


@pytest.mark.parametrize("backend", ["cpu", "metal", "cuda"])
def test_a_backend_that_is_not_there_says_so(backend, monkeypatch):
    for name in ("cpu", "metal", "cuda"):
        absent = BACKENDS[name]._replace(why_missing=lambda: "not built")
        monkeypatch.setitem(BACKENDS, name, absent)
    with pytest.raises(RuntimeError, match=f"backend '{backend}' is missing: .*available: mlx"):
        call(backend=backend)
    with pytest.raises(RuntimeError, match="is missing"):
        gl.linear_scan(FLAT, FLAT, backend=backend)


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
    y, _ = call()
    assert y.shape == FLAT.shape
