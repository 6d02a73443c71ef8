"""The inside of a chunk: its scores, by doubling blocks of one step.

For a block, `queries` are q times the products of a from the block's start through each step,
`keys` are k times the products from after each step through the block's end, conjugate, and
`totals` are the products over the whole block. Two neighbours make a block of twice the steps:

    queries = queries1, total1 queries2;  keys = conj(total2) keys1, keys2;  total = total1 total2

and the scores of queries2 with keys1 are one matrix product, Re(queries2 conj(keys1)^T).
"""

from collections.abc import Iterable

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes, conjugate, multiply, widen


def scores_of_blocks(
    q: mx.array, k: mx.array, a: Planes
) -> tuple[mx.array, Planes, Planes, Planes]:
    """Compute Re(sum_k q_n k_m a_{m+1} ... a_n), zero for m > n: `[..., steps, steps]`.

    q and k are `[..., steps, K]`, a `[..., steps, K or 1]`. Returns also the queries, keys and
    totals of the whole chunk.
    """
    # [..., blocks, steps of a block, K]
    planes = multiply(a, (q,)), widen((k,), len(a)), a
    queries, keys, totals = (tuple(x[..., None, :] for x in each) for each in planes)
    inside = (q * k).sum(-1)[..., None, None]
    while queries[0].shape[-3] > 1:
        queries1, queries2 = _halves(queries)
        keys1, keys2 = _halves(keys)
        total1, total2 = _halves(totals)
        (block1,), (block2,) = _halves((inside,))
        between = sum_of(x @ y.swapaxes(-1, -2) for x, y in zip(queries2, keys1, strict=True))
        above = mx.concatenate([block1, mx.zeros_like(block1)], -1)
        inside = mx.concatenate([above, mx.concatenate([between, block2], -1)], -2)
        queries = _joined(queries1, multiply(total1, queries2))
        keys = _joined(multiply(conjugate(total2), keys1), keys2)
        totals = multiply(total1, total2)
    whole = [tuple(x.squeeze(-3) for x in planes) for planes in (queries, keys, totals)]
    return inside.squeeze(-3), whole[0], whole[1], whole[2]


def sum_of(arrays: Iterable[mx.array]) -> mx.array:
    """Add arrays up, in their order."""
    first, *others = arrays
    return sum(others, first)


def _halves(planes: Planes) -> tuple[Planes, Planes]:
    """Return the first and the second of each two blocks."""
    # [..., blocks, rows, columns] -> twice [..., blocks / 2, rows, columns]
    pairs = (mx.split(mx.unflatten(x, -3, (-1, 2)), 2, -3) for x in planes)
    first, second = zip(*pairs, strict=True)
    return tuple(x.squeeze(-3) for x in first), tuple(x.squeeze(-3) for x in second)


def _joined(first: Planes, second: Planes) -> Planes:
    return tuple(mx.concatenate(list(pair), -2) for pair in zip(first, second, strict=True))
