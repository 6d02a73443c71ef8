"""The scan for heads with K, V > 1: matrix products inside a chunk, a carried state between chunks.

The states `[B, L, H, K, V]` are never formed. Inside a chunk, y_n sums over m the score
Re(sum_k q_n k_m a_{m+1} ... a_n) times v_m. Split a block in two halves: for m in the first and n
in the second half the decay factors at the boundary,

    a_{m+1} ... a_n = (a_{m+1} ... a_boundary) (a_{boundary+1} ... a_n),

so all scores between the halves are one matrix product of q times prefix products with k times
suffix products. Doubling the blocks from one step to the chunk covers every pair. Products only:
no quotient and no logarithm, so underflow and resets (a = 0) need no special case.
"""

from collections.abc import Callable

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes, multiply
from mlx_gateloop.ops.scan import linear_recurrence, previous

CHUNK = 64  # steps; the carried states take L / CHUNK of the memory that all states would


def chunked_gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Planes,
    h0: Planes,
    scan: Callable[[Planes, Planes, Planes], Planes] = linear_recurrence,
) -> tuple[mx.array, Planes]:
    """Compute all outputs and the last state.

    Args:
        q: Queries `[B, L, H, K]`, float32, as are all arrays.
        k: Keys `[B, L, H, K]`.
        v: Values `[B, L, H, V]`.
        a: Transition planes `[B, L, H, K]` or `[B, L, H, 1]`.
        h0: State planes `[B, H, K, V]`, as many as a has.
        scan: The scan over the chunks.

    Returns:
        y `[B, L, H, V]` and the planes of the last state.
    """
    B, L, H, V = v.shape
    chunk = min(CHUNK, 1 << (L - 1).bit_length())
    q, k, v = (_chunks(x, chunk, 0) for x in (q, k, v))
    a = tuple(_chunks(plane, chunk, 1 - i) for i, plane in enumerate(a))
    y, prefix, suffix = _inside(q, k, v, a)

    # The scan over each chunk's decayed sum of k^T v and its product gives the carried states.
    transposed = v.swapaxes(-1, -2)
    added = tuple((transposed @ (plane * k)).swapaxes(-1, -2) for plane in suffix)
    shape = added[0].shape
    total = tuple(mx.broadcast_to(plane[..., -1, :, None], shape) for plane in prefix)
    ends = scan(total, added, h0)
    starts = previous(ends, h0, reverse=False)
    y = y + _real_product(tuple(plane * q for plane in prefix), starts)
    # [B, chunks, H, chunk, V] -> [B, L, H, V]
    y = y.swapaxes(2, 3).reshape(B, -1, H, V)[:, :L]
    return y, tuple(plane[:, -1] for plane in ends)


def _chunks(x: mx.array, chunk: int, identity: int) -> mx.array:
    """Cut [B, L, H, size] into [B, chunks, H, chunk, size], padded with identity steps."""
    B, L, H, size = x.shape
    missing = -L % chunk
    if missing:
        x = mx.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=identity)
    return x.reshape(B, -1, chunk, H, size).swapaxes(2, 3)


def _inside(q: mx.array, k: mx.array, v: mx.array, a: Planes) -> tuple[mx.array, Planes, Planes]:
    """Compute the outputs within each chunk, and the products over it.

    Returns:
        y without the carried state; the products of a from the chunk's start through each step;
        the products from after each step through the chunk's end.
    """
    steps = q.shape[-2]
    y = (q * k).sum(-1, keepdims=True) * v
    prefix, suffix = a, tuple(mx.full(a[0].shape, 1.0 - i) for i in range(len(a)))
    half = 1
    while half < steps:
        (_, q2), (k1, _), (v1, _) = (_halves(x, half) for x in (q, k, v))
        prefix1, prefix2 = zip(*(_halves(plane, half) for plane in prefix), strict=True)
        suffix1, suffix2 = zip(*(_halves(plane, half) for plane in suffix), strict=True)
        keys = tuple((plane * k1).swapaxes(-1, -2) for plane in suffix1)
        scores = _real_product(tuple(plane * q2 for plane in prefix2), keys)
        y1, y2 = _halves(y, half)
        y = _whole(y1, y2 + scores @ v1)
        through1 = tuple(plane[..., -1:, :] for plane in prefix1)
        through2 = tuple(plane[..., -1:, :] for plane in prefix2)
        prefix = tuple(map(_whole, prefix1, multiply(through1, prefix2)))
        suffix = tuple(map(_whole, multiply(suffix1, through2), suffix2))
        half *= 2
    return y, prefix, suffix


def _halves(x: mx.array, half: int) -> tuple[mx.array, mx.array]:
    """Split every block in halves: [..., steps, size] -> twice [..., blocks, half, size]."""
    x = x.reshape(*x.shape[:-2], -1, 2, half, x.shape[-1])
    return x[..., 0, :, :], x[..., 1, :, :]


def _whole(first: mx.array, second: mx.array) -> mx.array:
    x = mx.concatenate([first, second], axis=-2)
    # [..., blocks, 2 half, size] -> [..., steps, size]
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _real_product(a: Planes, b: Planes) -> mx.array:
    """Return Re(a @ b), as one matrix product over concatenated planes."""
    if len(a) == 1:
        return a[0] @ b[0]
    return mx.concatenate([a[0], -a[1]], axis=-1) @ mx.concatenate(list(b), axis=-2)
