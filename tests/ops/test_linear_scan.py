from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import as_numpy, error, needs_native

import mlx_gateloop as gl
from mlx_gateloop.ops import scan

BACKENDS = ["mlx", pytest.param("cpu", marks=needs_native)]


def random(rng, shape, is_complex, scale=1.0):
    x = rng.normal(size=shape) * scale
    x = x + 1j * rng.normal(size=shape) * scale if is_complex else x
    return mx.array(x.astype(np.complex64 if is_complex else np.float32))


def loop(a, x, h, reverse):
    a, x, h = (np.array(z, dtype=np.complex128) for z in (a, x, h))
    states = np.zeros_like(x)
    steps = range(x.shape[1])
    for n in reversed(steps) if reverse else steps:
        h = states[:, n] = a[:, n] * h + x[:, n]
    return states


def _mixtures():
    """Every pair of values, and on each backend every mixture of real and complex arrays."""
    for i, length in enumerate([1, 2, 31, 32, 33, 63, 64, 65, 1000]):
        row = [bool(i & 1), bool(i & 2), bool(i & 4), i.bit_count() % 2 == 1]
        yield pytest.param("mlx", *row, length)
        yield pytest.param("cpu", *(not bit for bit in row), length, marks=needs_native)


@pytest.mark.parametrize(
    ("backend", "complex_a", "complex_x", "complex_h0", "reverse", "length"), list(_mixtures())
)
def test_agrees_with_the_loop(backend, complex_a, complex_x, complex_h0, reverse, length):
    rng = np.random.default_rng(length)
    a = random(rng, (2, length, 3), complex_a, 0.5)
    x = random(rng, (2, length, 3), complex_x)
    h0 = random(rng, (2, 3), complex_h0)
    h = gl.linear_scan(a, x, h0, reverse=reverse, backend=backend)
    is_complex = complex_a or complex_x or complex_h0
    assert h.dtype == (mx.complex64 if is_complex else mx.float32)
    want = loop(a, x, h0, reverse)
    assert error(h, want if is_complex else want.real) < 2e-6


@pytest.mark.parametrize("complex_x", [False, True])
@pytest.mark.parametrize("complex_a", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_of_autodiff_through_the_loop(backend, complex_a, complex_x):
    rng = np.random.default_rng(3)
    arrays = [
        random(rng, (2, 70, 3), complex_a, 0.5),
        random(rng, (2, 70, 3), complex_x),
        random(rng, (2, 3), complex_a or complex_x),
    ]
    weight = random(rng, (2, 70, 3), False)

    def unrolled(a, x, h):
        states = []
        for n in range(70):
            h = a[:, n] * h + x[:, n]
            states.append(h)
        return mx.stack(states, 1)

    def loss(function):
        def value(*arrays):
            h = function(*arrays)
            return (mx.real(h) * weight).sum() + (mx.imag(h) ** 2).sum()

        return mx.grad(value, argnums=(0, 1, 2))(*arrays)

    scan = partial(gl.linear_scan, backend=backend)
    for got, want in zip(loss(scan), loss(unrolled), strict=True):
        assert got.dtype == want.dtype
        assert error(got, as_numpy(want)) < 4e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_trailing_shape_and_half_precision(backend):
    rng = np.random.default_rng(4)
    a, x = (random(rng, (2, 40, 3, 2, 2), False, 0.5).astype(mx.bfloat16) for _ in range(2))
    h = gl.linear_scan(a, x, backend=backend)
    assert h.dtype == mx.bfloat16
    want = loop(as_numpy(a), as_numpy(x), np.zeros((2, 3, 2, 2)), False).real
    assert error(h, want) < 2**-8
    assert gl.linear_scan(a[:, :, 0, 0, 0], x[:, :, 0, 0, 0], backend=backend).shape == (2, 40)


def test_cumulative_sum_and_product_are_special_cases():
    x = mx.random.normal((1, 100, 4), key=mx.random.key(0))
    ones = mx.ones_like(x)
    assert error(gl.linear_scan(ones, x), as_numpy(mx.cumsum(x, axis=1))) < 2e-6
    powers = gl.linear_scan(ones * 0.5, mx.zeros_like(x), mx.ones((1, 4)))
    assert error(powers, np.full((1, 100, 4), 0.5) ** np.arange(1, 101)[:, None]) < 1e-6


@pytest.mark.parametrize("shape", [(0, 5, 2), (2, 0, 2), (2, 5, 0)])
def test_empty(shape):
    h = gl.linear_scan(mx.zeros(shape), mx.zeros(shape))
    assert h.shape == shape
    assert h.dtype == mx.float32


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 33, 100])
def test_hillis_steele_and_both_routes_of_the_scan_agree(length, reverse):
    rng = np.random.default_rng(length)
    a = random(rng, (1, length, 4), False, 0.6), random(rng, (1, length, 4), False, 0.6)
    x = (random(rng, (1, length, 4), False),)
    h0 = random(rng, (1, 4), False), random(rng, (1, 4), False)
    want = scan.stepwise_scan(a, x, h0, reverse)
    for route in (scan.hillis_steele, scan.two_level_scan):
        for got, plane in zip(route(a, x, h0, reverse), want, strict=True):
            assert error(got, as_numpy(plane)) < 2e-6


def test_wide_steps_take_the_other_route_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(6)
    a, x, h0 = (random(rng, s, False, 0.6) for s in [(2, 50, 3), (2, 50, 3), (2, 3)])
    two_levels = gl.linear_scan(a, x, h0, backend="mlx")
    monkeypatch.setattr(scan, "WIDE", 1)
    monkeypatch.setattr(scan, "_scan_chunks", None)  # must not be reached
    with mx.stream(mx.cpu):
        assert error(gl.linear_scan(a, x, h0, backend="mlx"), as_numpy(two_levels)) < 1e-6


def test_the_operator_is_associative():
    # The paper's appendix drops factors in its proof; the operator of eq. 13 itself is sound.
    rng = np.random.default_rng(8)
    p, q, r = [
        tuple((random(rng, (4,), False), random(rng, (4,), False)) for _ in range(2))
        for _ in range(3)
    ]
    left = scan.combine(*scan.combine(*p, *q), *r)
    right = scan.combine(*p, *scan.combine(*q, *r))
    for got, want in zip(left, right, strict=True):
        for g, w in zip(got, want, strict=True):
            assert error(g, as_numpy(w)) < 1e-6


def test_chunks_grow_with_the_root_of_the_length():
    assert [scan.chunk_length(n) for n in (1, 64, 256, 1024, 65536)] == [4, 4, 8, 16, 32]
