"""The inside of a chunk: its scores and their gradients, by doubling blocks of one step.

For a block, `queries` are q times the products of a from the block's start through each step,
`keys` are k times the products from after each step through the block's end, conjugate, and
`totals` are the products over the whole block. Two neighbours make a block of twice the steps:

    queries = queries1, total1 queries2;  keys = conj(total2) keys1, keys2;  total = total1 total2

and the scores of queries2 with keys1 are one matrix product, Re(queries2 conj(keys1)^T).
"""

from collections.abc import Iterable
from typing import NamedTuple

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes, add, conjugate, multiply, widen


class Blocks(NamedTuple):
    """Blocks of the same length; see above."""

    queries: Planes  # real and imaginary parts `[..., steps, K]`
    keys: Planes  # real and imaginary parts `[..., steps, K]`
    totals: Planes  # real and imaginary parts `[..., blocks, K or 1]`


def all_blocks(q: mx.array, k: mx.array, a: Planes) -> list[Blocks]:
    """Return the blocks of 1, 2, 4, ... steps up to the chunk; q, k `[..., steps, K]`."""
    levels = [Blocks(multiply(a, (q,)), widen((k,), len(a)), a)]
    while levels[-1].totals[0].shape[-2] > 1:
        queries, keys, totals = levels[-1]
        of_queries, of_keys = _factors(totals)
        levels.append(
            Blocks(
                _joined(multiply(of_queries, _pairs(queries, totals))),
                _joined(multiply(of_keys, _pairs(keys, totals))),
                multiply(_every_other(totals, 0), _every_other(totals, 1)),
            )
        )
    return levels


def scores(q: mx.array, k: mx.array, levels: list[Blocks]) -> mx.array:
    """Compute Re(sum_k q_n k_m a_{m+1} ... a_n), zero for m > n: `[..., steps, steps]`."""
    inside = (q * k).sum(-1)[..., None, None]
    for queries, keys, totals in levels[:-1]:
        second = (x[..., 1, :, :] for x in _pairs(queries, totals))
        first = (x[..., 0, :, :] for x in _pairs(keys, totals))
        between = sum_of(x @ y.swapaxes(-1, -2) for x, y in zip(second, first, strict=True))
        # [..., blocks, half, half] -> [..., blocks / 2, 2 half, 2 half]
        block1, block2 = inside[..., ::2, :, :], inside[..., 1::2, :, :]
        above = mx.concatenate([block1, mx.zeros_like(block1)], -1)
        inside = mx.concatenate([above, mx.concatenate([between, block2], -1)], -2)
    return inside.squeeze(-3)


def gradients(
    q: mx.array, k: mx.array, a: Planes, levels: list[Blocks], dscores: mx.array, d: Blocks
) -> tuple[mx.array, mx.array, Planes]:
    """Compute the gradients of q, k and a from those of the last level and the scores."""
    dscores = dscores[..., None, :, :]
    for level in reversed(levels[:-1]):
        half = dscores.shape[-1] // 2
        d = _of_halves(level, dscores, d)
        diagonal = [dscores[..., :half, :half], dscores[..., half:, half:]]
        # twice [..., blocks, half, half] -> [..., 2 blocks, half, half]
        dscores = mx.stack(diagonal, -3).reshape(*q.shape[:-2], -1, half, half)
    # A block of one step: queries = a q, keys = k, total = a.
    weights = dscores.squeeze(-1)
    dq = sum_of(x * y for x, y in zip(a, d.queries, strict=True)) + weights * k
    da = of_gates(tuple(q * plane for plane in d.queries), a)
    return dq, d.keys[0] + weights * q, add(da, d.totals)


def _of_halves(level: Blocks, dscores: mx.array, d: Blocks) -> Blocks:
    """Return the gradients of blocks from those of blocks of twice the steps."""
    queries, keys, totals = level
    size = dscores.shape[-1]
    is_second = mx.arange(size) >= size // 2
    # The scores of both halves with themselves belong to shorter blocks.
    dscores = mx.where(is_second[:, None] & ~is_second, dscores, 0)
    dqueries, dkeys = (_pairs(x, totals) for x in (d.queries, d.keys))
    of_queries, of_keys = (conjugate(x) for x in _factors(totals))
    total1, total2 = (conjugate(_every_other(totals, i)) for i in (0, 1))
    dtotal1 = _summed(_pairs(queries, totals), dqueries, 1, totals)
    dtotal2 = conjugate(_summed(_pairs(keys, totals), dkeys, 0, totals))
    dtotal1 = add(dtotal1, multiply(total2, d.totals))
    dtotal2 = add(dtotal2, multiply(total1, d.totals))
    return Blocks(
        add(_joined(multiply(of_queries, dqueries)), _products(dscores, keys)),
        add(_joined(multiply(of_keys, dkeys)), _products(dscores.swapaxes(-1, -2), queries)),
        # twice [..., pairs, K or 1] -> [..., blocks, K or 1]
        tuple(
            mx.stack(list(halves), -2).reshape(totals[0].shape)
            for halves in zip(dtotal1, dtotal2, strict=True)
        ),
    )


def of_gates(planes: Planes, a: Planes) -> Planes:
    """Sum over the channels of a head where they share one transition."""
    return tuple(x.sum(-1, keepdims=True) for x in planes) if a[0].shape[-1] == 1 else planes


def sum_of(arrays: Iterable[mx.array]) -> mx.array:
    """Add arrays up, in their order."""
    first, *others = arrays
    return sum(others, first)


def _factors(totals: Planes) -> tuple[Planes, Planes]:
    """Return what queries and keys of pairs are multiplied by, `[..., pairs, 2, 1, K or 1]`."""
    total1, total2 = (_every_other(totals, i) for i in (0, 1))
    one = tuple(mx.full(plane.shape, 1.0 - i) for i, plane in enumerate(total1))
    return (
        tuple(mx.stack([o, t], -2)[..., None, :] for o, t in zip(one, total1, strict=True)),
        tuple(
            mx.stack([t, o], -2)[..., None, :] for o, t in zip(one, conjugate(total2), strict=True)
        ),
    )


def _every_other(totals: Planes, first: int) -> Planes:
    return tuple(plane[..., first::2, :] for plane in totals)


def _pairs(planes: Planes, totals: Planes) -> Planes:
    """Cut into pairs of blocks: [..., steps, K] -> [..., pairs, 2, half, K]."""
    pairs = totals[0].shape[-2] // 2
    return tuple(x.reshape(*x.shape[:-2], pairs, 2, -1, x.shape[-1]) for x in planes)


def _joined(planes: Planes) -> Planes:
    # [..., pairs, 2, half, K] -> [..., steps, K]
    return tuple(x.reshape(*x.shape[:-4], -1, x.shape[-1]) for x in planes)


def _products(weights: mx.array, planes: Planes) -> Planes:
    """Multiply matrices `[..., blocks, size, size]` with the blocks of arrays `[..., steps, K]`."""
    shape = (*weights.shape[:-1], -1)
    return tuple((weights @ x.reshape(shape)).reshape(x.shape) for x in planes)


def _summed(a: Planes, b: Planes, half: int, totals: Planes) -> Planes:
    """Sum conj(a) b over the first or second half of pairs: `[..., pairs, K or 1]`."""
    a, b = (tuple(x[..., half, :, :] for x in planes) for planes in (a, b))
    return of_gates(tuple(x.sum(-2) for x in multiply(conjugate(a), b)), totals)
