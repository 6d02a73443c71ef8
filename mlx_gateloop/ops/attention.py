"""Surrogate attention: the recurrence as one masked matrix product over all pairs of steps.

The paper's decay pi_n / pi_m (section 3.3) underflows. Here it is the product over m+1..n alone.
"""

import mlx.core as mx

from mlx_gateloop.ops.planes import Outputs, Planes, add, multiply, without_inf
from mlx_gateloop.ops.scan import linear_recurrence


def attention(q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes) -> Outputs:
    """Compute all outputs and the last state in O(L^2); arguments as in `recurrent`."""
    # Column 0 is the state before the first step.
    a = tuple(mx.broadcast_to(plane, k.shape) for plane in a)
    D = decay(tuple(mx.concatenate([mx.zeros_like(plane[:, :1]), plane], 1) for plane in a))
    pairs = tuple(plane[:, 1:, 1:] for plane in D)
    scores = mx.einsum("bnhk,bmhk,bnmhk->bnmh", q, k, pairs[0])
    # A later infinity times 0 would be NaN in y.
    scores = mx.where(mx.tri(q.shape[1], dtype=mx.bool_)[:, :, None], scores, 0)
    v_finite, after = without_inf(v, 1)
    y = mx.einsum("bnmh,bmhv->bnhv", scores, v_finite) + after
    carried = multiply(
        tuple(plane[:, 1:, 0, ..., None] for plane in D), tuple(plane[:, None] for plane in h0)
    )
    y = y + (q[..., None] * carried[0]).sum(-2)
    # k^T v of every step, decayed to the last one.
    left = tuple(plane[:, -1] * k for plane in pairs)
    added = tuple(mx.einsum("bmhk,bmhv->bhkv", plane, v) for plane in left)
    return y, add(tuple(plane[:, -1] for plane in carried), added)


def softmax_attention(q: mx.array, k: mx.array, v: mx.array, a: Planes) -> mx.array:
    """Apply a softmax to the same scores (paper, section 3.4); float32 `[B, L, H, ...]`."""
    D = decay(tuple(mx.broadcast_to(plane, k.shape) for plane in a))
    scores = mx.einsum("bnhk,bmhk,bnmhk->bnmh", q, k, D[0])
    causal = mx.tri(q.shape[1], dtype=mx.bool_)[:, :, None]
    return mx.einsum("bnmh,bmhv->bnhv", mx.softmax(mx.where(causal, scores, -mx.inf), axis=2), v)


def decay(a: Planes) -> Planes:
    """Compute D[n, m] = a_{m+1} ... a_n for m <= n, else 0: `[B, L, H, K]` to `[B, n, m, H, K]`."""
    # In n it is a linear recurrence: D[n, m] = a_n D[n-1, m] + (1 if n = m else 0).
    B, L, H, K = a[0].shape
    wide = tuple(mx.broadcast_to(plane[:, :, None], (B, L, L, H, K)) for plane in a)
    here = mx.broadcast_to(mx.eye(L)[None, :, :, None, None], (B, L, L, H, K))
    return linear_recurrence(wide, (here,), ())
