"""The convolution equals the scan of a transition that is the same at every step."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import as_numpy, error, forward, inputs, normal, random_case, to_planes
from hypothesis import given
from hypothesis import strategies as st

import mlx_gateloop as gl

cases = st.builds(
    random_case, seed=st.integers(0, 2**16), length=st.integers(1, 70),
    heads=st.sampled_from([(3, 1, 1), (2, 3, 2), (1, 2, 4)]), resets=st.sampled_from([0.0, 0.5]),
    is_complex=st.booleans(), one_gate_per_head=st.booleans(),
)  # fmt: skip


@given(case=cases, dtype=st.sampled_from([mx.float32, mx.float16]))
def test_it_is_the_scan(case, dtype):
    q, k, v, a, _ = inputs(case, dtype)
    a = a[0, 0]
    expected = gl.gate_loop(q, k, v, mx.broadcast_to(a, (*q.shape[:2], *a.shape)), mode="scan")
    for got, want in zip(gl.ops.convolve(q, k, v, a), expected, strict=True):
        assert got.dtype == want.dtype
        assert error(got, as_numpy(want)) < (2**-10 if got.dtype == mx.float16 else 5e-6)


@pytest.mark.parametrize("form", ["sigmoid", "polar"])
def test_gradients_are_the_scans(form):
    q, k, v, dy = (normal(2, 37, 4, key=i) for i in range(4))
    first, second, dh = normal(4, key=4), normal(4, key=5), normal(2, 2, 4, key=6)
    first = -mx.abs(first) if form == "polar" else first

    def convolved(q, k, v, first, second):
        return list(gl.ops.convolve(q, k, v, gl.Transition(form, first, second)))

    def scanned(q, k, v, *gates):
        parts = (mx.broadcast_to(x, q.shape) for x in gates)
        return list(gl.gate_loop(q, k, v, gl.Transition(form, *parts), mode="scan"))

    arrays = [q, k, v, first, second]
    ours, theirs = (mx.vjp(f, arrays, [dy, dh])[1] for f in (convolved, scanned))
    for got, want in zip(ours, theirs, strict=True):
        assert error(got, as_numpy(want)) < 1e-5


def test_a_long_memory_stays_exact():
    case = random_case(1, 5000, batch=1, heads=(2, 1, 1))
    a = np.exp(np.array([-1 / 4000, -1 / 50]) + 1j * np.array([0.3, 3.0])).astype(np.complex64)
    case.a[:], case.h0[:] = a[:, None].astype(complex), 0
    y, h = gl.ops.convolve(*inputs(case)[:3], mx.array(a))
    want_y, want_h, _ = forward(case)
    assert error(y, want_y) < 2e-4
    assert error(h, as_numpy(to_planes(want_h))) < 2e-4


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 0, 2, 3), (2, 4, 2, 0)])
def test_empty(shape):
    x, v = mx.zeros(shape), mx.ones((*shape[:3], 3) if len(shape) == 4 else shape)
    y, h = gl.ops.convolve(x, x, v, mx.zeros(shape[2:]))
    assert y.shape == v.shape
    assert h.shape == gl.gate_loop(x, x, v, x)[1].shape
    assert not mx.any(h)
    assert not mx.any(y)
