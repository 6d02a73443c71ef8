"""The recurrence step by step: the specification that the other modes are tested against."""

import mlx.core as mx

from mlx_gateloop.ops.planes import Outputs, Planes, add, multiply
from mlx_gateloop.ops.scan import steps


@mx.compile
def step(q: mx.array, k: mx.array, v: mx.array, a: Planes, h: Planes) -> Outputs:
    """Take one step, h_n = a_n h_{n-1} + k_n^T v_n and y_n = Re(q_n h_n) (paper, eq. 7 and 8).

    All float32: q, k `[B, 1, H, K]`, v `[B, 1, H, V]`; parts of a `[B, 1, H, K or 1]` and of h
    `[B, H, K, V]`.
    """
    q, k, v = (x.squeeze(1) for x in (q, k, v))
    gates = tuple(plane.squeeze(1)[..., None] for plane in a)
    h = add(multiply(gates, h), (k[..., None] * v[..., None, :],))
    return (q[..., None] * h[0]).sum(-2), h


def recurrent(q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes) -> Outputs:
    """Loop over `step` on arrays `[B, L, H, ...]`; returns y and the last state."""
    y, h = [], h0
    for a_n, (q_n, k_n, v_n) in steps(a, (q, k, v), reverse=False, axis=1):
        y_n, h = step(q_n, k_n, v_n, a_n, h)
        y.append(y_n)
    return mx.stack(y, 1), h
