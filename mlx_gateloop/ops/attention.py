"""Surrogate attention: the recurrence as one masked matrix product over all pairs of steps.

The paper's decay pi_n / pi_m (section 3.3) underflows. Here it is exp of a sum of logarithms over
m+1..n alone, which stays exact for short spans; resets are masked.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.planes import Outputs, Planes, add, multiply
from mlx_gateloop.ops.scan import linear_recurrence
from mlx_gateloop.ops.transition import log_magnitude


def attention(q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes) -> Outputs:
    """Compute all outputs and the last state in O(L^2); arguments as in `recurrent`."""
    # Column 0 is the state before the first step.
    a = tuple(mx.broadcast_to(plane, k.shape) for plane in a)
    D = decay(tuple(mx.concatenate([mx.zeros_like(plane[:, :1]), plane], 1) for plane in a))
    pairs = tuple(plane[:, 1:, 1:] for plane in D)
    scores = mx.einsum("bnhk,bmhk,bnmhk->bnmh", q, k, pairs[0])
    y = mx.einsum("bnmh,bmhv->bnhv", scores, v)
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
    weights = mx.softmax(mx.where(causal, scores, -mx.inf), axis=2)
    return mx.einsum("bnmh,bmhv->bnhv", weights, v)


def decay(a: Planes) -> Planes:
    """Compute D[n, m] = a_{m+1} ... a_n for m <= n, else 0: `[B, L, H, K]` to `[B, n, m, H, K]`."""
    return tuple(_differentiable_decay(len(a))(*a))


@cache
def _differentiable_decay(count: int) -> Callable[..., Planes]:
    @mx.custom_function
    def function(*a: mx.array) -> Planes:
        return _log_space_decay(a)

    # Logarithms have no derivative at a = 0. In n the decay is a linear recurrence, whose
    # derivative is exact everywhere: D[n, m] = a_n D[n-1, m] + (1 if n = m else 0).
    @function.vjp
    def gradient(a: Any, cotangents: Any, _: Any) -> Planes:
        a, cotangents = _as_tuple(a), _as_tuple(cotangents)
        return tuple(mx.vjp(_recurrent_decay, list(a), list(cotangents))[1])

    @function.jvp
    def derivative(a: Any, tangents: Any) -> Planes:
        return tuple(mx.jvp(_recurrent_decay, list(_as_tuple(a)), list(_as_tuple(tangents)))[1])

    return lambda *a: _as_tuple(function(*a))


def _recurrent_decay(*a: mx.array) -> Planes:
    B, L, H, K = a[0].shape
    wide = tuple(mx.broadcast_to(plane[:, :, None], (B, L, L, H, K)) for plane in a)
    here = mx.broadcast_to(mx.eye(L)[None, :, :, None, None], (B, L, L, H, K))
    nothing = tuple(mx.zeros((B, L, H, K)) for _ in a)
    return linear_recurrence(wide, (here,), nothing)


def _log_space_decay(a: Planes) -> Planes:
    L = a[0].shape[1]
    reset = mx.all(mx.stack(list(a)) == 0, axis=0)
    real = mx.where(reset, 1, a[0])
    imaginary = a[1] if len(a) == 2 else mx.zeros_like(real)
    # Sums over m+1..n only: a difference of sums from the start would cancel digits.
    after = mx.tri(L, k=-1, dtype=mx.bool_)[..., None, None]
    logs = log_magnitude(real, imaginary)
    sums = mx.cumsum(mx.where(after, logs[:, :, None], 0), axis=1)
    resets = mx.cumsum(reset.astype(mx.int32), axis=1)
    alive = (resets[:, :, None] == resets[:, None]) & mx.tri(L, dtype=mx.bool_)[..., None, None]
    size = mx.where(alive, mx.exp(sums), 0)
    coarse, rest = _cumulative_turns(real, imaginary)
    turns = (coarse[:, :, None] - coarse[:, None]) % 1.0 + (rest[:, :, None] - rest[:, None])
    angle = 2 * mx.pi * turns
    return (size * mx.cos(angle), size * mx.sin(angle))[: len(a)]


def _cumulative_turns(real: mx.array, imaginary: mx.array) -> tuple[mx.array, mx.array]:
    """Sum phases in turns: exactly the part on a grid of 2^-12, and the rest."""
    turns = mx.arctan2(imaginary, real) / (2 * mx.pi)
    coarse = mx.round(turns * 4096) / 4096
    return mx.cumsum(coarse, axis=1), mx.cumsum(turns - coarse, axis=1)


def _as_tuple(x: Any) -> Planes:  # MLX passes a single array without a tuple
    return (x,) if isinstance(x, mx.array) else tuple(x)
