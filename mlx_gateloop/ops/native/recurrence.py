"""The operator and its scan in the C++ extension; arguments and results as in `gate_loop`."""

import mlx.core as mx

from mlx_gateloop.ops.native import FLOATS, extension
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.transition import FORMS, Transition


def gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
) -> tuple[mx.array, mx.array]:
    """Run the operator with fused gates; arguments as in `Backend.operator`."""
    operator = extension().gate_loop if q.ndim == 3 else extension().gate_loop_heads
    inputs = (q, k, v, a.first, a.second)
    arrays = [x if x is None or x.dtype in FLOATS else x.astype(mx.float32) for x in inputs]
    y, last = operator(*arrays, h0, mask, form=FORMS[a.form], reverse=bool(reverse))
    return y, last


def linear_recurrence(a: Planes, x: Planes, h0: Planes, reverse: bool = False) -> Planes:
    """Compute all states; arguments as in `scan.linear_recurrence`."""
    shape = a[0].shape
    flat = [[_flat(plane, 3) for plane in planes] for planes in (a, x)]
    start = [_flat(plane, 2) for plane in h0]
    h = extension().linear_scan(*flat, start, reverse=bool(reverse))
    return tuple(plane if len(shape) == 3 else plane.reshape(shape) for plane in h)


def _flat(x: mx.array, axes: int) -> mx.array:
    # [B, L, ...] -> [B, L, D]; an unneeded reshape would fix the shape in a shapeless compile
    return x if x.ndim == axes else x.reshape(*x.shape[: axes - 1], -1)
