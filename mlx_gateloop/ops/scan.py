"""The linear recurrence h_n = a_n h_{n-1} + x_n as a parallel scan in plain MLX operations.

The steps inside chunks run side by side over all chunks, the chunk summaries are combined by the
same scan, and a second pass reruns each chunk from its true starting state. Nothing is ever divided
by a product of transitions, so a = 0 is exact.
"""

import math
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes, add, conjugate, multiply

Pair = tuple[Planes, Planes]

CHUNK = 32  # steps at most in a chunk
SHORT = 16  # steps; up to this length chunks don't pay
# On a CPU, if one step covers at least WIDE numbers, single steps are faster: the chunks read
# everything twice. On two cores (16, 1024, 624) takes 37 against 80 ms. Beyond LONG steps building
# the graph takes too long.
WIDE, LONG = 8192, 1024


def linear_recurrence(a: Planes, x: Planes, h0: Planes, reverse: bool = False) -> Planes:
    """Compute all states of h_n = a_n h_{n-1} + x_n along axis 1, with a hand-written gradient.

    a, x `[B, L, ...]` and h0 `[B, ...]` (() is zero) are tuples of float32 parts, as is the result.
    """
    if not h0:
        h0 = (mx.zeros((a[0].shape[0], *a[0].shape[2:])),) * max(len(a), len(x))
    return tuple(_differentiable_scan(len(a), len(x), reverse)(*a, *x, *h0))


@cache
def _differentiable_scan(planes_a: int, planes_x: int, reverse: bool) -> Callable[..., Any]:
    def unpack(arrays: Planes) -> tuple[Planes, Planes, Planes]:
        a, rest = arrays[:planes_a], arrays[planes_a:]
        return tuple(a), tuple(rest[:planes_x]), tuple(rest[planes_x:])

    @mx.custom_function
    def scan(*arrays: mx.array) -> Planes:
        return chunked_scan(*unpack(arrays), reverse)

    # With G_n the gradient of the loss by h_n along every path, the chain rule gives
    #   G_n = dh_n + conj(a_{n+1}) G_{n+1},   dx_n = G_n,   da_n = conj(h_{n-1}) G_n,
    # the same recurrence run backwards: one more scan, not L steps of autodiff.
    @scan.vjp
    def gradient(arrays: Planes, cotangents: Planes, h: Planes) -> Planes:
        a, _, h0 = unpack(arrays)
        nothing = tuple(mx.zeros_like(plane) for plane in h0)
        a_next = previous(conjugate(a), nothing[: len(a)], not reverse)
        G = linear_recurrence(a_next, tuple(cotangents), nothing, not reverse)
        h_before = previous(tuple(h), h0, reverse)
        if len(a) == 1:  # a real: the real part of conj(h) G
            da: Planes = (reduce(mx.add, map(mx.multiply, h_before, G)),)
        else:
            da = multiply(conjugate(h_before), G)
        first = (slice(None), -1 if reverse else 0)
        dh0 = multiply(conjugate(_at(a, first)), _at(G, first))
        return (*da, *G[:planes_x], *dh0)

    return scan


def previous(h: Planes, h0: Planes, reverse: bool) -> Planes:
    """Shift the states by one step, to h_{n-1}, in the order of the scan."""
    if reverse:
        return tuple(mx.concatenate([p[:, 1:], s[:, None]], 1) for p, s in zip(h, h0, strict=True))
    return tuple(mx.concatenate([s[:, None], p[:, :-1]], 1) for p, s in zip(h, h0, strict=True))


def chunked_scan(a: Planes, x: Planes, h0: Planes, reverse: bool) -> Planes:
    """Scan without a hand-written gradient; arguments as in `linear_recurrence`."""
    L = a[0].shape[1]
    if L <= SHORT or (mx.default_device().type == mx.cpu and h0[0].size >= WIDE and L <= LONG):
        return stepwise_scan(a, x, h0, reverse)
    # About half the square root of the length, a power of two in [4, 32].
    chunk = min(CHUNK, 1 << max(2, math.ceil(math.log2(math.sqrt(L) / 2))))
    if (full := L - L % chunk) == L:
        return _scan_chunks(a, x, h0, reverse, chunk)
    # The ragged end runs step by step, which saves padded copies.
    body, end = (slice(None), slice(full)), (slice(None), slice(full, L))
    found: list[Planes] = []
    for part in (end, body) if reverse else (body, end):
        pieces = _at(a, part), _at(x, part), h0, reverse
        found.append(stepwise_scan(*pieces) if part is end else _scan_chunks(*pieces, chunk))
        h0 = tuple(plane[:, 0 if reverse else -1] for plane in found[-1])
    found = found[::-1] if reverse else found
    return tuple(mx.concatenate(list(planes), 1) for planes in zip(*found, strict=True))


def _scan_chunks(a: Planes, x: Planes, h0: Planes, reverse: bool, chunk: int) -> Planes:
    B, L, *rest = a[0].shape
    # [B, L, ...] -> [B, chunks, chunk, ...]
    a, x = (tuple(p.reshape(B, L // chunk, chunk, *rest) for p in planes) for planes in (a, x))
    in_chunks = steps(a, x, reverse, axis=2)
    # Per chunk: the product of its transitions, and its last state when started from zero.
    summary = in_chunks[0]
    for step_ in in_chunks[1:]:
        summary = combine(*summary, *step_)
    products, states = (tuple(p.squeeze(2) for p in planes) for planes in summary)
    ends = chunked_scan(products, states, h0, reverse)
    h = _run(in_chunks, previous(ends, h0, reverse), reverse, axis=2)
    return tuple(p.reshape(B, L, *rest) for p in h)


def stepwise_scan(a: Planes, x: Planes, h0: Planes, reverse: bool) -> Planes:
    return _run(steps(a, x, reverse, axis=1), h0, reverse, axis=1)


def _run(pairs: list[Pair], h: Planes, reverse: bool, axis: int) -> Planes:
    """Compute the states after h one step at a time, in parallel over all other axes."""
    h = tuple(mx.expand_dims(plane, axis) for plane in h)
    states: list[Planes] = []
    for a, x in pairs:
        h = step(a, x, h)
        states.append(h)
    states = states[::-1] if reverse else states
    return tuple(mx.concatenate(list(planes), axis) for planes in zip(*states, strict=True))


def steps(a: Planes, x: Planes, reverse: bool, axis: int) -> list[Pair]:
    """Split a and x into steps, their `axis` of length 1, in the order of the scan."""
    parts = list(zip(*(_split(plane, axis) for plane in (*a, *x)), strict=True))
    return [(planes[: len(a)], planes[len(a) :]) for planes in (parts[::-1] if reverse else parts)]


def _split(x: mx.array, axis: int) -> list[mx.array]:
    # One split is cheaper than many slices, but each part refers to all the others: a long axis
    # is split in two rounds.
    if (length := x.shape[axis]) <= CHUNK:
        return list(mx.split(x, length, axis))
    blocks = mx.split(x, list(range(CHUNK, length, CHUNK)), axis)
    return [part for block in blocks for part in _split(block, axis)]


@mx.compile
def step(a: Planes, x: Planes, h: Planes) -> Planes:
    return add(multiply(a, h), x)


@mx.compile
def combine(a1: Planes, x1: Planes, a2: Planes, x2: Planes) -> Pair:
    """Apply the paper's operator (eq. 13): first (a1, x1), then (a2, x2)."""
    return multiply(a1, a2), add(multiply(a2, x1), x2)


def _at(planes: Planes, index: tuple[int | slice, ...]) -> Planes:
    return tuple(plane[index] for plane in planes)
