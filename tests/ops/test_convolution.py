"""The convolution equals the scan of a transition that is the same at every step."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error, random_case
from hypothesis import given
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.ops.convolution import powers


def arguments(case, max_headed):
    """q, k, v and the constant transition of a case: the one of its first step."""
    a = case.a[0, 0].astype(np.complex64 if np.iscomplexobj(case.a) else np.float32)
    arrays = [mx.array(x.astype(np.float32)) for x in (case.q, case.k, case.v)]
    if max_headed:
        return [x.squeeze(-1) for x in arrays], mx.array(a).squeeze(-1)
    return arrays, mx.array(a)


def at_every_step(a, q):
    return mx.broadcast_to(a, (*q.shape[:2], *a.shape))


cases = st.builds(
    random_case,
    seed=st.integers(0, 2**16),
    length=st.integers(1, 70),
    heads=st.sampled_from([(3, 1, 1), (2, 3, 2), (1, 2, 4)]),
    is_complex=st.booleans(),
    one_gate_per_head=st.booleans(),
    resets=st.sampled_from([0.0, 0.5]),
)


@given(case=cases)
def test_it_is_the_scan(case):
    (q, k, v), a = arguments(case, case.q.shape[-1] == 1)
    y, h = gl.ops.convolve(q, k, v, a)
    expected, state = gl.gate_loop(q, k, v, at_every_step(a, q), mode="scan")
    assert error(y, np.array(expected)) < 5e-6
    assert error(h, np.array(state)) < 5e-6


@pytest.mark.parametrize("form", ["sigmoid", "polar"])
def test_gradients_are_the_scans(form):
    keys = mx.random.split(mx.random.key(3), 7)
    q, k, v, dy = (mx.random.normal((2, 37, 4), key=key) for key in keys[:4])
    first, second = (mx.random.normal((4,), key=key) for key in keys[4:6])
    if form == "polar":
        first = -mx.abs(first)
    dh = mx.random.normal((2, 2, 4), key=keys[6])
    make = getattr(gl.Transition, form)

    def loss(result):
        return (result[0] * dy).sum() + (result[1] * dh).sum()

    def convolved(q, k, v, first, second):
        return loss(gl.ops.convolve(q, k, v, make(first, second)))

    def scanned(q, k, v, first, second):
        parts = (mx.broadcast_to(x, q.shape) for x in (first, second))
        return loss(gl.gate_loop(q, k, v, make(*parts), mode="scan"))

    where = list(range(5))
    ours = mx.grad(convolved, where)(q, k, v, first, second)
    theirs = mx.grad(scanned, where)(q, k, v, first, second)
    for got, want in zip(ours, theirs, strict=True):
        assert error(got, np.array(want)) < 1e-5


def test_a_long_memory_stays_exact():
    length = 5000
    k = mx.random.normal((1, length, 2), key=mx.random.key(0))
    a = np.exp(np.array([-1 / 4000, -1 / 50]) + 1j * np.array([0.3, 3.0])).astype(np.complex64)
    y, h = gl.ops.convolve(mx.ones_like(k), mx.ones_like(k), k, mx.array(a))
    states = np.zeros((length, 2), complex)
    state = np.zeros(2, complex)
    for n, x in enumerate(np.array(k[0], np.float64)):
        states[n] = state = a.astype(complex) * state + x
    assert error(y[0], states.real) < 2e-4
    assert error(h[0], np.stack([state.real, state.imag])) < 2e-4


def test_powers():
    a = (mx.array([0.0, 0.5, 0.0]), mx.array([0.0, 0.5, 1.0]))
    real, imaginary = powers(a, 6)
    expected = np.array([0, 0.5 + 0.5j, 1j]) ** np.arange(6)[:, None]
    np.testing.assert_allclose(np.array(real) + 1j * np.array(imaginary), expected, atol=1e-7)


def test_half_precision_goes_in_and_out():
    x = mx.random.normal((1, 9, 2)).astype(mx.float16)
    y, h = gl.ops.convolve(x, x, x, mx.array([0.5, 1.0]))
    assert (y.dtype, h.dtype) == (mx.float16, mx.float32)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 0, 2, 3)])
def test_empty(shape):
    x = mx.zeros(shape)
    y, h = gl.ops.convolve(x, x, x, mx.zeros(shape[2:]))
    assert y.shape == shape
    assert h.shape == gl.gate_loop(x, x, x, x)[1].shape
    assert not mx.any(h)


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (
            mx.zeros((2, 5, 3)),
            r"a: expected shape \(3,\) \(one for each channel\), got \(2, 5, 3\)",
        ),
        (mx.zeros((1,)), r"a: expected shape \(3,\)"),
        (mx.zeros((3,), mx.int32), "a: expected a floating-point or complex64 array"),
    ],
)
def test_what_does_not_fit_is_named(a, message):
    x = mx.zeros((2, 5, 3))
    with pytest.raises(ValueError, match=message):
        gl.ops.convolve(x, x, x, a)


def test_heads_may_share_a_transition():
    x = mx.zeros((2, 5, 3, 4))
    with pytest.raises(ValueError, match=r"a: expected \(3, 4\) or \(3, 1\), got \(4,\)"):
        gl.ops.convolve(x, x, x, mx.zeros((4,)))
    assert gl.ops.convolve(x, x, x, mx.zeros((3, 1)))[0].shape == x.shape
