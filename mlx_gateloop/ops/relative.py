"""Softmax attention of the last tokens to all, relative positions by transitions; for a cache.

Unlike `softmax_attention` it takes the logarithms of the transitions, which a cache can keep for
every token and never has to change. Sums run over m+1..n alone, as there.
"""

import mlx.core as mx


def relative_attention(
    q: mx.array, keys: mx.array, v: mx.array, parts: int, mask: mx.array | None
) -> mx.array:
    """y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n)) v_m over m <= n.

    Args:
        q: Queries of the last N of T tokens, `[B, H, N, K]`.
        keys: Keys, then log |a|, then arg a, `[B, H, T, K + parts A]`; A is K or 1.
        v: Values, `[B, H, T, V]`.
        parts: 0 where a = 1, 1 where it is real and positive, else 2.
        mask: Bool, broadcast to `[B, H, N, T]`, False where a query must not look; None looks at
            all tokens up to its own.

    Returns:
        `[B, H, N, V]` in v's dtype.
    """
    if parts == 0:
        how: mx.array | str = "causal" if mask is None else mask
        return mx.fast.scaled_dot_product_attention(q, keys, v, scale=1.0, mask=how)
    rows, size = q.shape[2:]
    width = (keys.shape[-1] - size) // parts
    k, *logs = mx.split(keys.astype(mx.float32), [size + n * width for n in range(parts)], -1)
    sums = [_between(log, rows) for log in logs]
    left = mx.exp(sums[0]) * (mx.cos(sums[1]) if parts == 2 else 1)
    q = q.astype(mx.float32)
    if width < size:  # the channels of a head share it
        scores = (q @ k.swapaxes(-1, -2)) * left[..., 0]
    else:
        scores = mx.einsum("bhnk,bhmk,bhnmk->bhnm", q, k, left)
    seen = _lower(rows, keys.shape[2], 0)
    if mask is not None:
        seen = seen & mask
    # Not -inf: a row of padding sees nothing, and NaN in it would reach others through its value.
    weights = mx.softmax(mx.where(seen, scores, mx.finfo(mx.float32).min), axis=-1)
    return (weights @ v.astype(mx.float32)).astype(v.dtype)


def _between(log: mx.array, rows: int) -> mx.array:
    """Sums of `[B, H, T, A]` over m+1..n for all m and the last n: `[B, H, rows, T, A]`."""
    length = log.shape[2]
    new = mx.where(_lower(rows, length, -1)[..., None], log[:, :, length - rows :, None], 0)
    # Of the tokens before the new ones, those after m.
    old = mx.cumsum(log[:, :, : length - rows], axis=2, reverse=True, inclusive=False)
    old = mx.pad(old, [(0, 0), (0, 0), (0, rows), (0, 0)])
    return mx.cumsum(new, axis=2) + old[:, :, None]


def _lower(rows: int, columns: int, diagonal: int) -> mx.array:
    """Whether m <= n + diagonal, for all columns m and the last rows n."""
    return mx.tri(rows, columns, columns - rows + diagonal, dtype=mx.bool_)
