"""The recurrence step by step: the specification that the other modes are tested against."""

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.chunked import chunked_gate_loop
from mlx_gateloop.ops.planes import Outputs, Planes, add, multiply


@mx.compile
def step(q: mx.array, k: mx.array, v: mx.array, a: Planes, h: Planes) -> Outputs:
    """Take one step, h_n = a_n h_{n-1} + k_n^T v_n and y_n = Re(q_n h_n) (paper, eq. 7 and 8).

    All float32: q, k `[B, H, K]`, v `[B, H, V]`; parts of a `[B, H, K or 1]` and h `[B, H, K, V]`.
    """
    gates = tuple(plane[..., None] for plane in a)
    h = add(multiply(gates, h), (k[..., None] * v[..., None, :],))
    return (q[..., None] * h[0]).sum(-2), h


def recurrent(q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes) -> Outputs:
    """Loop over `step` on arrays `[B, L, H, ...]`; returns y and the last state."""
    y, *h = _loop_with_scan_gradient(len(a))(q, k, v, *a, *h0)
    return y, tuple(h)


@cache
def _loop_with_scan_gradient(planes: int) -> Callable[..., Any]:
    def flat(form: Callable[..., Outputs], arrays: Planes) -> Planes:
        q, k, v, *rest = arrays
        y, h = form(q, k, v, tuple(rest[:planes]), tuple(rest[planes:]))
        return y, *h

    @mx.custom_function
    def loop(*arrays: mx.array) -> Planes:
        return flat(_loop, arrays)

    # Autodiff of an unrolled loop takes time quadratic in L. The scan computes the same function,
    # so its gradient serves.
    @loop.vjp
    def gradient(arrays: Planes, cotangents: Planes, _: Planes) -> list[mx.array]:
        def scan(*arrays: mx.array) -> Planes:
            return flat(chunked_gate_loop, arrays)

        return mx.vjp(scan, list(arrays), list(cotangents))[1]

    return loop


def _loop(q: mx.array, k: mx.array, v: mx.array, a: Planes, h: Planes) -> Outputs:
    y = []
    for n in range(q.shape[1]):
        y_n, h = step(q[:, n], k[:, n], v[:, n], tuple(plane[:, n] for plane in a), h)
        y.append(y_n)
    return mx.stack(y, 1), h
