"""Rows of half types are read and written exactly as MLX converts them."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import as_numpy, error, needs_native
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl

pytestmark = needs_native
HALVES = (mx.float16, mx.bfloat16)


def passed_through(x, dtype):
    """x through the operator as q, with a state of 1, into an output of this type."""
    length = x.size
    q, one = x.reshape(1, length, 1), mx.ones((1, length, 1))
    y, _ = gl.gate_loop(q, one, one.astype(dtype), 0 * one, mode="scan", backend="cpu")
    assert y.dtype == dtype
    return y.reshape(-1)


def bits(x):
    """The bits of a half type's numbers, those of every NaN alike."""
    return np.array(mx.where(mx.isnan(x), mx.array(float("nan"), x.dtype), x).view(mx.uint16))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_number_is_kept(dtype):
    x = mx.arange(2**16).astype(mx.uint16).view(dtype)
    assert (bits(passed_through(x, dtype)) == bits(x)).all()
    wide = as_numpy(passed_through(x, mx.float32))
    np.testing.assert_array_equal(wide, np.array(x.astype(mx.float32)))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_outputs_are_rounded_as_mlx_rounds(dtype, numbers):
    x = mx.array(np.array(numbers, np.float32))
    assert (bits(passed_through(x, dtype)) == bits(x.astype(dtype))).all()


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("is_complex", [False, True])
def test_every_array_may_have_a_type_of_its_own(is_complex, heads):
    shape = (2, 70, 3, 5) if heads else (2, 70, 9)
    types = (mx.float16, mx.bfloat16, mx.float32, mx.bfloat16, mx.float16)[: 4 + is_complex]
    arrays = [mx.random.normal(shape, key=mx.random.key(i)).astype(t) for i, t in enumerate(types)]

    def outputs(*xs, backend="cpu"):
        a = gl.Transition.sigmoid(*xs[3:])
        return [gl.gate_loop(*xs[:3], a, mode="scan", backend=backend)[0]]

    wide = [x.astype(mx.float32) for x in arrays]
    (y,), found = mx.vjp(outputs, arrays, [arrays[2]])
    (want_y,), want = mx.vjp(outputs, wide, [wide[2]])
    assert mx.array_equal(y, want_y)
    for x, got, exact in zip(arrays, found, want, strict=True):
        assert got.dtype == x.dtype
        assert mx.array_equal(got, exact.astype(x.dtype))


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_second_derivatives(dtype, heads):
    shape = (1, 5, 2, 3) if heads else (1, 5, 3)
    x, d = (mx.random.normal(shape, key=mx.random.key(i)).astype(dtype) for i in (0, 1))

    def slope(x, backend):
        def loss(x):
            y, h = gl.gate_loop(x, x, x, gl.Transition.sigmoid(x), mode="scan", backend=backend)
            return y.astype(mx.float32).square().sum() + h.sum()

        return (mx.grad(loss)(x) * d).astype(mx.float32).sum()

    got, want = (mx.grad(slope)(x, backend) for backend in ("cpu", "mlx"))
    assert got.dtype == dtype
    assert error(got, as_numpy(want)) < 0.05  # both round their first derivative
    moved = mx.vmap(lambda x: slope(x, "cpu"))(mx.stack([x, 2 * x]))
    for got, one in zip(moved, (x, 2 * x), strict=True):
        assert error(got, as_numpy(slope(one, "cpu"))) < 1e-6


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_keys_are_summed_in_float32_along_a_tangent_too(dtype):
    q, v = mx.ones((1, 1, 1, 256)).astype(dtype), mx.ones((1, 1, 1, 1)).astype(dtype)
    k = mx.where(mx.arange(256) % 2 == 0, 256, -255).astype(dtype).reshape(q.shape)  # cancels

    def outputs(v):
        return [gl.gate_loop(q, k, v, mx.zeros((1, 1, 1, 1)), mode="scan", backend="cpu")[0]]

    (y,), (moved,) = mx.jvp(outputs, [v], [v])
    assert y.item() == moved.item() == k.astype(mx.float32).sum().item()
