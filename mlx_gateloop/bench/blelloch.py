"""Textbook scans in plain MLX operations, to compare with.

Complex numbers are float32 planes; the state before the first step is zero.
"""

import mlx.core as mx

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.scan import hillis_steele

Pair = tuple[Planes, Planes]


def blelloch_scan(a: Planes, x: Planes) -> Planes:
    """Compute all states of h_n = a_n h_{n-1} + x_n by a work-efficient tree (Blelloch, 1990).

    The up-sweep combines neighbours, level by level, into the map of the segment below a node. The
    down-sweep passes each node the state before its segment: the left child gets its parent's, the
    right child the result of the left child's map.
    """
    length = a[0].shape[1]
    level = _padded(a, x)
    lefts: list[Pair] = []
    while level[0][0].shape[1] > 1:
        left, right = (_every_second(level, first) for first in (0, 1))
        lefts.append(left)
        level = _combine(left, right)
    before = tuple(mx.zeros_like(plane) for plane in level[1])
    for left in reversed(lefts):
        after = _apply(*left, before)
        before = tuple(_interleaved(p, q) for p, q in zip(before, after, strict=True))
    return _apply(a, x, tuple(plane[:, :length] for plane in before))


def hillis_steele_scan(a: Planes, x: Planes) -> Planes:
    """The same in log2 L doubling steps, each over the whole length (Hillis and Steele, 1986)."""
    return hillis_steele(a, x, tuple(mx.zeros_like(plane[:, 0]) for plane in x), False)


def naive_loop(a: Planes, x: Planes) -> Planes:
    """The recurrence as one would first write it."""
    real = imaginary = mx.zeros_like(x[0][:, 0])
    states = []
    for n in range(x[0].shape[1]):
        a_real, a_imaginary = a[0][:, n], a[1][:, n]
        real, imaginary = (
            a_real * real - a_imaginary * imaginary + x[0][:, n],
            a_real * imaginary + a_imaginary * real + x[1][:, n],
        )
        states.append((real, imaginary))
    return tuple(mx.stack(list(plane), 1) for plane in zip(*states, strict=True))


def _padded(a: Planes, x: Planes) -> Pair:
    """Pad to a power of two; no state that is returned depends on the padding."""
    length = a[0].shape[1]
    missing = (1 << (length - 1).bit_length()) - length
    if missing == 0:
        return a, x
    pad = [(0, 0), (0, missing), (0, 0)]
    return tuple(mx.pad(p, pad) for p in a), tuple(mx.pad(p, pad) for p in x)


def _every_second(pair: Pair, first: int) -> Pair:
    a, x = (tuple(plane[:, first::2] for plane in planes) for planes in pair)
    return a, x


def _interleaved(even: mx.array, odd: mx.array) -> mx.array:
    return mx.flatten(mx.stack([even, odd], 2), 1, 2)


@mx.compile
def _combine(left: Pair, right: Pair) -> Pair:
    return pl.multiply(left[0], right[0]), _apply(*right, left[1])


@mx.compile
def _apply(a: Planes, x: Planes, h: Planes) -> Planes:
    return pl.add(pl.multiply(a, h), x)
