"""Softmax attention of the last tokens to all tokens, with relative positions from a cache.

Unlike `softmax_attention` it takes logarithms of transitions, which a cache can append to, and its
memory grows with L^2 K / BLOCK in place of L^2 K. Phases turn query and key by their sums from the
first token. Magnitudes would under- or overflow there: queries are taken in blocks, and the decay
from earlier tokens is split at the block's start. Both factors are at most 1, so there is no
division, and only forgotten tokens underflow. On CPUs the C++ extension keeps decayed keys instead,
with a rounding for each token: about sqrt(L) 1e-7 of a score.
"""

import math

import mlx.core as mx

from mlx_gateloop.ops.cpu import extension_on_cpu

BLOCK = 16  # queries; with L^2 / BLOCK + L BLOCK exponentials, and as much memory, for each channel
TURN = 6.28125  # 2 pi in few bits: its products with whole numbers are exact
TURN_REST = 2 * math.pi - TURN


def relative_attention(
    q: mx.array, keys: mx.array, v: mx.array, parts: int, mask: mx.array | None
) -> mx.array:
    """Compute y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n)) v_m over m <= n.

    q `[B, H, N, K]` is of the last N of T tokens; `keys` `[B, H, T, K + parts A]` are keys, log |a|
    and arg a, A = K or 1; `parts` is 0 if a = 1, 1 if it is positive, else 2; v `[B, H, T, V]`. The
    mask is broadcast to `[B, H, N, T]`; None is causal.
    """
    if mask is not None:
        heads = mask.shape[-3] if mask.ndim > 2 else 1
        mask = mx.broadcast_to(mask, (q.shape[0], heads, q.shape[2], keys.shape[2]))
    # MLX reads plain keys in place, which for a single query takes a fifth of the time.
    if (extension := extension_on_cpu()) is None or (parts == 0 and q.shape[2] == 1):
        return composed(q, keys, v, parts, mask)
    arrays = [x.astype(mx.float32) for x in (q, keys, v)]
    return extension.relative_attention(*arrays, mask, parts=parts).astype(v.dtype)


def composed(
    q: mx.array, keys: mx.array, v: mx.array, parts: int, mask: mx.array | None
) -> mx.array:
    """Compute `relative_attention` in MLX's operations, its mask `[B, 1 or H, N, T]`."""
    rows, size, length = q.shape[2], q.shape[3], keys.shape[2]
    if parts == 0:
        how: mx.array | str = "causal" if mask is None else mask
        return mx.fast.scaled_dot_product_attention(q, keys, v, scale=1.0, mask=how)
    width = (keys.shape[-1] - size) // parts
    k, decay, *phases = mx.split(
        keys.astype(mx.float32), [size + n * width for n in range(parts)], -1
    )
    # Real and imaginary part of a turned number, `[B, H, T, 1 or 2, K]`.
    q, k = q.astype(mx.float32)[:, :, :, None], k[:, :, :, None]
    if phases:  # Re(q k exp(i (phase_n - phase_m))) is an inner product of their parts
        turn = _turn(phases[0])
        q, k = q * turn[:, :, length - rows :], k * turn
    values, blocks = v.astype(mx.float32), []
    for first in range(0, rows, BLOCK):
        queries = q[:, :, first : first + BLOCK]
        stop = length - rows + first + queries.shape[2]
        scores = _scores(queries, k[:, :, :stop], decay[:, :, :stop])
        seen = mx.tri(queries.shape[2], stop, stop - queries.shape[2], dtype=mx.bool_)
        if mask is not None:
            seen = seen & mask[..., first : first + BLOCK, :stop]
        # Not -inf: a row of padding sees no token, and its NaN would spread through its value.
        weights = mx.softmax(mx.where(seen, scores, mx.finfo(mx.float32).min), axis=-1)
        blocks.append(weights @ values[:, :, :stop])
    y = mx.concatenate(blocks, axis=2) if blocks else mx.zeros((*q.shape[:3], v.shape[3]))
    return y.astype(v.dtype)


def _turn(phase: mx.array) -> mx.array:
    """Compute cosine and sine of the sums of phases up to each token, `[B, H, T, 2, A]`."""
    length = phase.shape[2]
    padded = mx.pad(_wrapped(phase), [(0, 0), (0, 0), (0, -length % BLOCK), (0, 0)])
    inside = mx.cumsum(mx.unflatten(padded, 2, (-1, BLOCK)), axis=3)
    before = mx.cumsum(_wrapped(inside[:, :, :, -1:]), axis=2, inclusive=False)
    sums = mx.flatten(inside + before, 2, 3)[:, :, :length]
    return mx.stack([mx.cos(sums), mx.sin(sums)], axis=3)


def _wrapped(phase: mx.array) -> mx.array:
    """Take whole turns out of phases; 2 pi has two parts, as its rounding would add up."""
    turns = mx.stop_gradient(mx.round(phase / (TURN + TURN_REST)))
    return phase - TURN * turns - TURN_REST * turns


def _scores(q: mx.array, k: mx.array, decay: mx.array) -> mx.array:
    """Sum q_n k_m exp(decay_{m+1} + ... + decay_n), `[B, H, rows, T]`; undefined for m > n."""
    rows, start = q.shape[2], k.shape[2] - q.shape[2]
    new, old = decay[:, :, start:], decay[:, :, :start]
    # From the start of the block to n; from m to that start.
    after = mx.exp(mx.cumsum(new, axis=2))
    before = mx.exp(mx.cumsum(old, axis=2, reverse=True, inclusive=False))
    left = mx.flatten(q * after[:, :, :, None], 3)
    right = mx.flatten(k[:, :, :start] * before[:, :, :, None], 3)
    earlier = left @ right.swapaxes(-1, -2)
    # Within the block: sums over m+1..n only, as a difference of sums would lose digits.
    later = mx.tri(rows, k=-1, dtype=mx.bool_)[..., None]
    inside = mx.exp(mx.cumsum(mx.where(later, new[:, :, :, None], 0), axis=2))
    pairs = (q[:, :, :, None] * k[:, :, None, start:]).sum(-2)
    return mx.concatenate([earlier, (pairs * inside).sum(-1)], axis=-1)
