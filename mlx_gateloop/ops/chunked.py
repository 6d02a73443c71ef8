"""The scan for heads with K, V > 1: matrix products inside a chunk, a carried state between chunks.

The states `[B, L, H, K, V]` are never formed. Inside a chunk, y_n sums over m the score
Re(sum_k q_n k_m a_{m+1} ... a_n) times v_m. For m in the first and n in the second half of a block,

    a_{m+1} ... a_n = (a_{m+1} ... a_middle) (a_{middle+1} ... a_n),

so these scores are one matrix product of q times prefix products with k times suffix products.
Doubling the blocks from one step to the chunk covers every pair. Products only, so underflow and
resets (a = 0) need no special case.

The gradient keeps the states before each group of chunks and computes the rest again. Both passes
take one group after another, so that only one group's intermediate arrays are in memory. Keys and
states are conjugate here: Re(x h) is then a sum of products of parts, without signs.
"""

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.planes import Outputs, Planes, add, conjugate, multiply, widen, without_inf
from mlx_gateloop.ops.scan import Pair, step

CHUNK = 64  # steps; the carried states take L / CHUNK of the memory that all states would
# Floats in a group's keys and values, or in its states. On a CPU its arrays stay in the caches;
# with fewer, MLX's time for each operation counts, which weighs more on a GPU (not measured there).
GROUP, GROUP_ON_GPU = 1 << 19, 1 << 22


def chunked_gate_loop(q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes) -> Outputs:
    """Compute y `[B, L, H, V]` and the last state, with a gradient of our own; see `gate_loop`."""
    y, *states = _differentiable(len(a))(q, k, v, *a, *h0)
    return y, tuple(states[: len(a)])


@cache
def _differentiable(planes: int) -> Callable[..., Any]:
    @mx.custom_function
    def outputs_and_states(*arrays: mx.array) -> Planes:
        x, a, h = arrays[:3], arrays[3 : 3 + planes], conjugate(arrays[3 + planes :])
        y: list[mx.array] = []
        starts: Planes = ()
        for group in _groups(x, planes):
            starts += h
            y_part, h = _forward(*_part(x, a, group, y[-1:]), h)
            y.append(y_part)
        return _whole(y, arrays[0].shape[1]), *conjugate(h), *starts

    @outputs_and_states.vjp
    def gradient(arrays: Planes, cotangents: Planes, results: Planes) -> Planes:
        dy, *rest = cotangents
        x, a = (*arrays[:3], dy), tuple(arrays[3 : 3 + planes])
        D, starts = conjugate(tuple(rest[:planes])), results[1 + planes :]
        parts: list[Planes] = []
        for i, group in reversed(list(enumerate(_groups(x, planes)))):
            of_group = slice(i * planes, (i + 1) * planes)
            (*inputs, dy), gates = _part(x, a, group, parts[-1] if parts else ())
            part = mx.vjp(again, [*inputs, *gates, *starts[of_group]], [dy, *D])[1]
            D = add(tuple(part[-planes:]), tuple(rest[planes:][of_group]))
            parts.append(tuple(part[:-planes]))
        whole = (_whole(p[::-1], arrays[0].shape[1]) for p in zip(*parts, strict=True))
        return *whole, *conjugate(D)

    def again(*arrays: mx.array) -> list[mx.array]:
        y, h = _forward(arrays[:3], arrays[3 : 3 + planes], arrays[3 + planes :])
        return [y, *h]

    return outputs_and_states


def _chunk(length: int) -> int:
    return min(CHUNK, 1 << (length - 1).bit_length())


def _groups(x: Planes, planes: int) -> list[slice]:
    B, L, H, K = x[1].shape
    V, chunk = x[2].shape[-1], _chunk(L)
    floats = B * H * planes * max(chunk * (K + V), K * V)
    group = GROUP if mx.default_device().type == mx.cpu else GROUP_ON_GPU
    steps = chunk * max(1, group // floats)
    return [slice(start, min(start + steps, L)) for start in range(0, L, steps)]


def _part(x: Planes, a: Planes, group: slice, done: Planes | list[mx.array]) -> Pair:
    """Cut a group's chunks out of inputs and transitions, to be computed after `done`."""
    chunk = _chunk(x[0].shape[1])
    x = tuple(_chunks(plane[:, group], chunk, 0) for plane in x)
    a = tuple(_chunks(plane[:, group], chunk, 1 - i) for i, plane in enumerate(a))
    if not done:
        return x, a
    # MLX computes in the order of dependence, and `mx.depends` has no vmap.
    firsts = mx.stack([plane[(0,) * plane.ndim] for plane in done])
    zero = mx.isnan(firsts).any().astype(mx.float32) * 0
    return tuple(plane + zero for plane in x), tuple(plane + zero for plane in a)


def _chunks(x: mx.array, chunk: int, identity: int) -> mx.array:
    """Cut [B, L, H, size] into [B, chunks, H, chunk, size], padded with identity steps."""
    B, L, H, size = x.shape
    if missing := -L % chunk:
        x = mx.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=identity)
    return x.reshape(B, -1, chunk, H, size).swapaxes(2, 3)


def _whole(parts: Planes | list[mx.array], length: int) -> mx.array:
    """Join the groups' chunks: the inverse of `_chunks`."""
    # [B, chunks, H, chunk, size] -> [B, L, H, size]
    x = mx.concatenate([part.swapaxes(2, 3) for part in parts], 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _forward(x: Planes, a: Planes, h: Planes) -> Outputs:
    """Compute the outputs of a group, and the state after it."""
    q, k, v = x
    scores, queries, keys, totals = _scores(q, k, a)
    added = tuple(plane.swapaxes(-1, -2) @ v for plane in keys)
    starts, h = _carry(conjugate(totals), added, tuple(plane[:, None] for plane in h))
    carried = (x @ h for x, h in zip(queries, starts, strict=True))
    v, after = without_inf(v, 3)
    return reduce(mx.add, [scores @ v, after, *carried]), tuple(p.squeeze(1) for p in h)


def _carry(totals: Planes, added: Planes, h: Planes) -> Pair:
    """Return the states before each chunk `[B, chunks, H, K, V]`, and that after the last."""
    # [B, chunks, H, 1, K or 1] -> [B, chunks, H, K or 1, 1]
    planes = *(plane.swapaxes(-1, -2) for plane in totals), *added
    before: list[Planes] = []
    for parts in zip(*(mx.split(plane, plane.shape[1], 1) for plane in planes), strict=True):
        before.append(h)
        h = step(parts[: len(totals)], parts[len(totals) :], h)
    return tuple(mx.concatenate(list(planes), 1) for planes in zip(*before, strict=True)), h


def _scores(q: mx.array, k: mx.array, a: Planes) -> tuple[mx.array, Planes, Planes, Planes]:
    """Compute Re(sum_k q_n k_m a_{m+1} ... a_n), zero for m > n: `[..., steps, steps]`.

    q and k are `[..., steps, K]`, a `[..., steps, K or 1]`. Returns also the queries, keys and
    totals of the whole chunk. For a block, `queries` are q times the products of a from its start
    through each step, `keys` are k times the products from after each step through its end,
    conjugate, and `totals` the products over all of it. Two make a block of twice the steps:

        queries = queries1, total1 queries2;  keys = conj(total2) keys1, keys2
        total = total1 total2

    and the scores of queries2 with keys1 are one matrix product, Re(queries2 conj(keys1)^T).
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
        products = (x @ y.swapaxes(-1, -2) for x, y in zip(queries2, keys1, strict=True))
        above = mx.concatenate([block1, mx.zeros_like(block1)], -1)
        inside = mx.concatenate([above, mx.concatenate([reduce(mx.add, products), block2], -1)], -2)
        queries = _joined(queries1, multiply(total1, queries2))
        keys = _joined(multiply(conjugate(total2), keys1), keys2)
        totals = multiply(total1, total2)
    whole = [tuple(x.squeeze(-3) for x in planes) for planes in (queries, keys, totals)]
    return inside.squeeze(-3), whole[0], whole[1], whole[2]


def _halves(planes: Planes) -> tuple[Planes, Planes]:
    """Return the first and the second of each two blocks."""
    # [..., blocks, rows, columns] -> twice [..., blocks / 2, rows, columns]
    pairs = (mx.split(mx.unflatten(x, -3, (-1, 2)), 2, -3) for x in planes)
    first, second = zip(*pairs, strict=True)
    return tuple(x.squeeze(-3) for x in first), tuple(x.squeeze(-3) for x in second)


def _joined(first: Planes, second: Planes) -> Planes:
    return tuple(mx.concatenate(list(pair), -2) for pair in zip(first, second, strict=True))
