"""Operators that compute their own gates, beside the float64 loops of `reference`."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from helpers.reference import as_numpy, error, forward, gradients, inputs, to_planes

from mlx_gateloop.ops.transition import Transition

# A value's own rounding, half a step at most; a half type takes it from float32's.
ROUNDING = {mx.float32: 1e-6, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


def with_gates(case, form, dtype, shift=0, turn=1, closed=0, seed=1):
    """The case with gates of that form, their arrays, and the gradients by these of one by a."""
    count = 2 if np.iscomplexobj(case.a) else 1
    rng = np.random.default_rng(seed)

    def values(x):
        return np.array(mx.array(x.astype(np.float32)).astype(dtype).astype(mx.float32), np.float64)

    if form == "cartesian":
        first, second = values(case.a.real), values(case.a.imag)
        a = first + 1j * second
    else:
        first = values(rng.normal(size=case.a.shape) + shift)
        first = first if form == "sigmoid" else -np.abs(first)
        first[rng.uniform(size=first.shape) < closed] = -np.inf
        second = values(turn * rng.normal(size=case.a.shape))
        size = 1 / (1 + np.exp(-first)) if form == "sigmoid" else np.exp(first)
        a = size * np.exp(1j * second) if count == 2 else size

    def by_gates(da):
        if form != "cartesian":
            da = da * np.conj(a)  # by log a
        slope = 1 - size if form == "sigmoid" else 1
        return [da.real * slope, da.imag][:count]

    return replace(case, a=a if count == 2 else a.real), [first, second][:count], by_gates


def check(
    operator, case, form="sigmoid", dtype=mx.float32, gate_dtype=mx.float32, cancels=False,
    rounding=ROUNDING[mx.float32], by=2e-6, **options,
):  # fmt: skip
    """Compare y, the last state and every gradient with the reference, to the dtype's rounding.

    If all of a result may have cancelled (`cancels`), an error is relative to the size of a sum of
    as many products of size 1. `rounding` bounds y and the last state in float32, `by` gradients.
    """
    case, gates, by_gates = with_gates(case, form, gate_dtype, **options)
    inner = (..., 0) if case.max_headed else ...

    def array(x, dtype=mx.float32):
        return mx.array(x[inner].astype(np.float32)).astype(dtype)

    q, k, v, _, h0 = inputs(case, dtype)
    arrays = [q, k, v, *(array(x, gate_dtype) for x in gates), h0]
    mask = None if case.mask.all() else mx.array(case.mask.copy())

    def outputs(q, k, v, *rest):
        a = Transition(form, *rest[:-1])
        return list(operator(q, k, v, a, rest[-1], mask=mask, reverse=case.reverse))

    cotangents = [array(case.dy, dtype), to_planes(case.dh).reshape(h0.shape)]
    (y, h), found = mx.vjp(outputs, arrays, cotangents)
    K, V, shared = case.q.shape[-1], case.v.shape[-1], case.q.shape[-1] // case.a.shape[-1]
    summed = [V, V, K, *[V * shared] * len(gates), 1]
    least = [n**0.5 if cancels else 1e-30 for n in (K, *summed)]
    want_y, want_h, _ = forward(case)
    want = gradients(case)
    assert (y.dtype, y.shape, h.dtype, h.shape) == (dtype, v.shape, mx.float32, h0.shape)
    assert error(y, want_y, least[0]) <= max(rounding, ROUNDING[dtype])
    assert error(h, as_numpy(to_planes(want_h)), least[-1]) <= rounding
    wanted = [want["q"], want["k"], want["v"], *by_gates(want["a"])]
    wanted.append(as_numpy(to_planes(want["h0"])))
    for x, gradient, w, size in zip(arrays, found, wanted, least[1:], strict=True):
        assert gradient.dtype == x.dtype
        assert error(gradient, w, size) <= max(by, ROUNDING[x.dtype])
