"""The operator in plain MLX operations, on separate real and imaginary float32 arrays."""

from typing import Literal

import mlx.core as mx

from mlx_gateloop.ops.attention import attention
from mlx_gateloop.ops.chunked import chunked_gate_loop
from mlx_gateloop.ops.planes import Outputs, Planes, stack, unstack
from mlx_gateloop.ops.recurrent import recurrent
from mlx_gateloop.ops.scan import linear_recurrence
from mlx_gateloop.ops.transition import Transition

Mode = Literal["auto", "recurrent", "scan", "attention"]


def gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
    mode: Mode = "auto",
) -> tuple[mx.array, mx.array]:
    """Run the operator in one of its modes; other arguments as in `Backend.operator`."""
    if mode == "auto":
        mode = "recurrent" if q.shape[1] == 1 else "scan"
    shape, dtype = v.shape, v.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    gates = (a if mask is None else a.masked(mask)).planes()
    if mask is not None:
        q, k, v = (_where(mask, x) for x in (q, k, v))
    if h0 is None:
        h0 = mx.zeros((q.shape[0], len(gates), *q.shape[2:], *v.shape[3:]))
    y, h = _run(q, k, v, gates, unstack(h0), reverse, mode)
    y = y.reshape(shape)
    if mask is not None:  # q is 0 there, but 0 times an overflowed state is not
        y = _where(mask, y)
    return y.astype(dtype), stack(h)


def _run(
    q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes, reverse: bool, mode: Mode
) -> Outputs:
    """Run a mode on float32 arrays; returns y and the last state."""
    if q.size == 0 or v.size == 0:
        return mx.zeros_like(v), h0
    if mode == "scan" and q.ndim == 3:  # every channel is a recurrence of its own
        h = linear_recurrence(a, (k * v,), h0, reverse)
        return q * h[0], tuple(plane[:, 0 if reverse else -1] for plane in h)
    state = h0[0].shape
    q, k, v, a = as_heads(q, k, v, a)
    h0 = tuple(s.reshape(*q.shape[:1], *q.shape[2:], v.shape[-1]) for s in h0)
    if reverse:
        q, k, v = (x[:, ::-1] for x in (q, k, v))
        a = tuple(plane[:, ::-1] for plane in a)
    if mode == "scan":
        y, h = chunked_gate_loop(q, k, v, a, h0)
    else:
        y, h = (recurrent if mode == "recurrent" else attention)(q, k, v, a, h0)
    return (y[:, ::-1] if reverse else y), tuple(plane.reshape(state) for plane in h)


def as_heads(
    q: mx.array, k: mx.array, v: mx.array, a: Planes
) -> tuple[mx.array, mx.array, mx.array, Planes]:
    """Return max-headed arrays as heads of one channel, others as they are."""
    if q.ndim == 3:  # [B, L, D] -> [B, L, H = D, 1]
        q, k, v = (x[..., None] for x in (q, k, v))
        a = tuple(plane[..., None] for plane in a)
    return q, k, v, a


def _where(mask: mx.array, x: mx.array) -> mx.array:
    """Return x where the mask `[B, L]` is True, else 0."""
    return mx.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0)
