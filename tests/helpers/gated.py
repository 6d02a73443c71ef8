"""Operators that compute their own gates, beside the float64 loops of `reference`."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
from helpers.reference import Case, as_numpy, error, forward, gradients, to_planes

from mlx_gateloop.ops.transition import Transition

Arrays = list[np.ndarray]
# A value's own rounding, half a step at most; a half type takes it from float32's.
ROUNDING = {mx.float32: 1e-6, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


def with_gates(
    case: Case,
    form: str,
    dtype: mx.Dtype,
    shift: float = 0,
    turn: float = 1,
    closed: float = 0,
    seed: int = 1,
) -> tuple[Case, Arrays, Arrays]:
    """The case with gates of that form, their one or two arrays, and the gradients by these.

    Args:
        case: The case; a "cartesian" form keeps its transitions, the others draw new ones.
        form: The form of the `Transition`.
        dtype: The arrays' values are exactly representable in it.
        shift: Added to the gates' normal values.
        turn: The standard deviation of the phases, in radians.
        closed: The share of the gates whose magnitude is 0 in float32.
        seed: Of the new gates.
    """
    is_complex = np.iscomplexobj(case.a)
    rng = np.random.default_rng(seed)

    def values(x: np.ndarray) -> np.ndarray:
        return np.array(mx.array(x.astype(np.float32)).astype(dtype).astype(mx.float32), np.float64)

    if form == "cartesian":
        first, second = values(case.a.real), values(case.a.imag)
        case = replace(case, a=first + 1j * second if is_complex else first)
        by_first, by_second = (da := gradients(case)["a"]).real, da.imag
    else:
        first = values(rng.normal(size=case.a.shape) + shift)
        first = first if form == "sigmoid" else -np.abs(first)
        first[rng.uniform(size=first.shape) < closed] = -200
        second = values(turn * rng.normal(size=case.a.shape))
        size = 1 / (1 + np.exp(-first)) if form == "sigmoid" else np.exp(first)
        case = replace(case, a=size * np.exp(1j * second) if is_complex else size)
        by_log = gradients(case)["a"] * np.conj(case.a)
        by_first, by_second = by_log.real * (1 - size if form == "sigmoid" else 1), by_log.imag
    count = 2 if is_complex else 1
    return case, [first, second][:count], [by_first, by_second][:count]


def check(
    operator: Callable[..., tuple[mx.array, mx.array]],
    case: Case,
    form: str,
    dtype: mx.Dtype = mx.float32,
    gate_dtype: mx.Dtype = mx.float32,
    cancels: bool = False,
    rounding: float = ROUNDING[mx.float32],
    **options: float,
) -> tuple[mx.array, mx.array]:
    """Compare y, the last state and every gradient with the reference, to the dtype's rounding.

    Args:
        operator: Called as `gate_loop` is, without a mode and a backend.
        case: The case, whose transitions are drawn anew.
        form: The form of the `Transition`.
        dtype: Of q, k and v.
        gate_dtype: Of the gates.
        cancels: True if all of a result may have cancelled: an error is then relative to the size
            of a sum of as many products of size 1.
        rounding: Largest relative error of y and the last state in float32.
        options: As in `with_gates`.

    Returns:
        y and the last state.
    """
    case, gates, by_gates = with_gates(case, form, gate_dtype, **options)
    inner = (..., 0) if case.max_headed else ...

    def array(x: np.ndarray, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.array(x[inner].astype(np.float32)).astype(dtype)

    def state(x: np.ndarray) -> mx.array:
        return to_planes(x[..., 0, 0] if case.max_headed else x)

    arrays = [array(x, dtype) for x in (case.q, case.k, case.v)]
    arrays += [array(x, gate_dtype) for x in gates] + [state(case.h0)]
    mask = None if case.mask.all() else mx.array(case.mask.copy())

    def outputs(q: mx.array, k: mx.array, v: mx.array, *rest: mx.array) -> list[mx.array]:
        a = Transition(form, *rest[:-1])
        return list(operator(q, k, v, a, rest[-1], mask=mask, reverse=case.reverse))

    (y, h), found = mx.vjp(outputs, arrays, [array(case.dy, dtype), state(case.dh)])
    K, V, shared = case.q.shape[-1], case.v.shape[-1], case.q.shape[-1] // case.a.shape[-1]
    summed = [V, V, K, *[V * shared] * len(gates), 1]
    least = [n**0.5 if cancels else 1e-30 for n in (K, *summed)]
    want_y, want_h, _ = forward(case)
    want = gradients(case)
    assert y.dtype == dtype
    assert error(y, want_y, least[0]) <= max(rounding, ROUNDING[dtype])
    assert error(h, as_numpy(to_planes(want_h)), least[-1]) <= rounding
    wanted = [want["q"], want["k"], want["v"], *by_gates, as_numpy(to_planes(want["h0"]))]
    for x, gradient, w, size in zip(arrays, found, wanted, least[1:], strict=True):
        assert gradient.dtype == x.dtype
        assert error(gradient, w, size) <= max(2e-6, ROUNDING[x.dtype])
    return y, h
