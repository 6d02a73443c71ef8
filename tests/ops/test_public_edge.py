"""All modes and backends agree on any values, layouts and transformations of the arguments."""

from functools import partial

import mlx.core as mx
import numpy as np
from helpers.reference import as_numpy, error
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.ops.backends import BACKENDS

FLOATS = [mx.float32, mx.float16, mx.bfloat16]
PRESENT = [name for name, backend in BACKENDS.items() if backend.why_missing() is None]
WAYS = [{"mode": mode} for mode in ("recurrent", "attention", "auto")]
WAYS += [{"mode": "scan", "backend": backend} for backend in PRESENT]
VALUES = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, np.inf, -np.inf, np.nan]
sizes = st.integers(0, 4)


def filled(draw, shape, dtype, special=False, scale=1.0):
    """Normal numbers, in some cases with special values, in some not contiguous."""
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape) * scale
    if special and x.size:
        for value in draw(st.lists(st.sampled_from(VALUES), max_size=3)):
            x.flat[draw(st.integers(0, x.size - 1))] = value
    with np.errstate(all="ignore"):
        array = mx.array(x.astype(np.float32))
    if draw(st.booleans()):  # the axes in memory the other way round
        array = mx.contiguous(array.T).T
    return array.astype(dtype)


@st.composite
def cases(draw, special=False):
    """q, k, v, gates and h0, a mask and the direction, of shapes that fit."""
    batch, length, heads, keys, values = (draw(sizes) for _ in range(5))
    length = draw(st.sampled_from([length, 1, 33]))
    headed = draw(st.booleans())
    inner, outer = ((heads, keys), (heads, values)) if headed else ((heads,), (heads,))
    gates = (heads, draw(st.sampled_from([1, keys]))) if headed else inner
    array = partial(filled, draw, special=special)
    q, k, v = (
        array((batch, length, *size), draw(st.sampled_from(FLOATS)))
        for size in (inner, inner, outer)
    )
    first, second = (array((batch, length, *gates), draw(st.sampled_from(FLOATS))) for _ in "ab")
    state = (batch, draw(st.sampled_from([1, 2])), *inner, *((values,) if headed else ()))
    h0 = array(state, mx.float32) if draw(st.booleans()) else None
    mask = filled(draw, (batch, length), mx.float32) > 0 if draw(st.booleans()) else None
    form = draw(st.sampled_from(["sigmoid", "polar"]))
    first = first if form == "sigmoid" else -mx.abs(first)
    a = getattr(gl.Transition, form)(first, second if draw(st.booleans()) else None)
    return (q, k, v, a, h0), {"mask": mask, "reverse": draw(st.booleans())}


@settings(max_examples=30)
@given(cases())
def test_all_ways_agree_at_any_shape_dtype_and_layout(case):
    arguments, options = case
    q, _, v, a, _ = arguments
    found = [gl.gate_loop(*arguments, **options, **way) for way in WAYS]
    for y, h in found:
        assert (y.shape, y.dtype, h.dtype) == (v.shape, v.dtype, mx.float32)
        assert h.shape == (q.shape[0], 1 + a.is_complex, *q.shape[2:], *v.shape[3:])
        assert error(y, as_numpy(found[0][0]), 1) <= (0.02 if v.dtype != mx.float32 else 2e-4)
        assert error(h, as_numpy(found[0][1]), 1) <= 2e-4
    y = gl.ops.gate_loop_softmax(*arguments[:4])
    assert (y.shape, y.dtype) == (v.shape, v.dtype)
    assert mx.isfinite(y).all()


@settings(max_examples=30)
@given(cases(special=True))
def test_special_values_end_nothing_and_stay_in_their_batch(case):
    (q, k, v, a, h0), (mask, reverse) = case[0], case[1].values()
    for way in WAYS:
        y, h = gl.gate_loop(q, k, v, a, h0, mask=mask, reverse=reverse, **way)
        mx.eval(y, h)
        if q.shape[0] < 2:
            continue
        first = [None if x is None else x[:1] for x in (q, k, v, h0, a.first, a.second, mask)]
        *most, start, gate, phase, live = first
        a0 = gl.Transition(a.form, gate, phase)
        alone = gl.gate_loop(*most, a0, start, mask=live, reverse=reverse, **way)
        for got, want in zip((y[:1], h[:1]), alone, strict=True):
            assert mx.array_equal(mx.isfinite(got), mx.isfinite(want))


@settings(max_examples=30)
@given(st.data())
def test_scans_of_any_shape_and_dtype_agree(data):
    shape = data.draw(st.tuples(sizes, st.sampled_from([0, 1, 2, 33])))
    shape += tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    dtypes = st.sampled_from([*FLOATS, mx.complex64])
    a, x = (filled(data.draw, shape, data.draw(dtypes), scale=0.5) for _ in "ax")
    h0 = filled(data.draw, shape[:1] + shape[2:], data.draw(dtypes))
    h0 = data.draw(st.sampled_from([None, h0]))
    reverse = data.draw(st.booleans())
    found = [gl.linear_scan(a, x, h0, reverse=reverse, backend=name) for name in PRESENT]
    is_complex = mx.complex64 in [z.dtype for z in (a, x, *([] if h0 is None else [h0]))]
    for h in found:
        assert (h.shape, h.dtype) == (x.shape, mx.complex64 if is_complex else x.dtype)
        assert error(h - found[0], np.zeros(h.shape), 1) <= 0.02
