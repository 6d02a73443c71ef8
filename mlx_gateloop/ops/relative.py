"""Softmax attention of the last tokens to all tokens, with relative positions from a cache.

Unlike `softmax_attention` it takes logarithms of transitions, which a cache can append to, and its
memory grows with L^2 without a factor K: queries are taken in blocks, and the decay from earlier
tokens is split at the block's start. Both factors are at most 1, so there is no division, and only
forgotten tokens underflow.
"""

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes

BLOCK = 32  # queries


def relative_attention(
    q: mx.array, keys: mx.array, v: mx.array, parts: int, mask: mx.array | None
) -> mx.array:
    """Compute y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n)) v_m over m <= n.

    Args:
        q: Queries of the last N of T tokens, `[B, H, N, K]`.
        keys: Keys, then log |a|, then arg a, `[B, H, T, K + parts A]`; A is K or 1.
        v: Values, `[B, H, T, V]`.
        parts: 0 if a = 1, 1 if it is real and positive, else 2.
        mask: Bool, broadcast to `[B, H, N, T]`, False where attention is forbidden; None is
            causal.

    Returns:
        `[B, H, N, V]` in v's dtype.
    """
    if parts == 0:
        how: mx.array | str = "causal" if mask is None else mask
        return mx.fast.scaled_dot_product_attention(q, keys, v, scale=1.0, mask=how)
    rows, size, length = q.shape[2], q.shape[3], keys.shape[2]
    if mask is not None:
        mask = mx.broadcast_to(mask, (*mask.shape[:-2], rows, length))
    width = (keys.shape[-1] - size) // parts
    k, *log = mx.split(keys.astype(mx.float32), [size + n * width for n in range(parts)], -1)
    q, values = q.astype(mx.float32), v.astype(mx.float32)
    blocks = []
    for first in range(0, rows, BLOCK):
        queries = q[:, :, first : first + BLOCK]
        stop = length - rows + first + queries.shape[2]
        scores = _scores(queries, k[:, :, :stop], tuple(part[:, :, :stop] for part in log))
        seen = mx.tri(queries.shape[2], stop, stop - queries.shape[2], dtype=mx.bool_)
        if mask is not None:
            seen = seen & mask[..., first : first + BLOCK, :stop]
        # Not -inf: a row of padding sees no token, and its NaN would spread through its value.
        weights = mx.softmax(mx.where(seen, scores, mx.finfo(mx.float32).min), axis=-1)
        blocks.append(weights @ values[:, :, :stop])
    y = mx.concatenate(blocks, axis=2) if blocks else mx.zeros((*q.shape[:3], v.shape[3]))
    return y.astype(v.dtype)


def _scores(q: mx.array, k: mx.array, log: Planes) -> mx.array:
    """Compute Re(q_n k_m a_{m+1} ... a_n), `[B, H, rows, T]`; undefined for m > n."""
    rows, start = q.shape[2], k.shape[2] - q.shape[2]
    new = tuple(part[:, :, start:] for part in log)
    # From the start of the block to n; from m to that start.
    after = _exp(tuple(mx.cumsum(part, axis=2) for part in new))
    before = _exp(
        tuple(mx.cumsum(p[:, :, :start], axis=2, reverse=True, inclusive=False) for p in log)
    )
    products = [
        (q * left) @ (k[:, :, :start] * right).swapaxes(-1, -2)
        for left, right in zip(after, before, strict=True)
    ]
    earlier = products[0] if len(products) == 1 else products[0] - products[1]
    # Within the block: sums over m+1..n only, as a difference of sums would lose digits.
    later = mx.tri(rows, k=-1, dtype=mx.bool_)[..., None]
    inside = _exp(tuple(mx.cumsum(mx.where(later, p[:, :, :, None], 0), axis=2) for p in new))[0]
    within = (q[:, :, :, None] * k[:, :, None, start:] * inside).sum(-1)
    return mx.concatenate([earlier, within], axis=-1)


def _exp(log: Planes) -> Planes:
    magnitude = mx.exp(log[0])
    if len(log) == 1:
        return (magnitude,)
    return magnitude * mx.cos(log[1]), magnitude * mx.sin(log[1])
