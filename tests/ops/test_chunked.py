"""The gradient of heads, written by hand: against float64, its memory, and its own derivative."""

from dataclasses import replace
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, gradients, random_case

from mlx_gateloop.ops import chunked
from mlx_gateloop.ops.chunked import chunked_gate_loop

NAMES = ("q", "k", "v", "a", "h0")


def planes(case, arrays):
    """Real parts of q, k, v, a and h0, and if the case is complex imaginary ones of a and h0."""
    both = ("a", "h0") if np.iscomplexobj(case.a) else ()
    parts = [(arrays[n].real, arrays[n].imag)[: 1 + (n in both)] for n in NAMES]
    return [part for pair in parts for part in pair]


def arrays_of(case):
    return to_mlx(planes(case, vars(case)))


def wanted(case):
    return planes(case, gradients(case))


def to_mlx(arrays):
    return [mx.array(x.astype(np.float32)) for x in arrays]


def gradient(case, arrays):
    """Gradients of q, k, v, a and h0 by the loss that `reference.gradients` has."""
    count = (len(arrays) - 3) // 2
    dy, *dh = to_mlx([case.dy, case.dh.real, case.dh.imag][: 1 + count])

    def loss(arrays):
        q, k, v, *rest = arrays
        y, h = chunked_gate_loop(q, k, v, tuple(rest[:count]), tuple(rest[count:]))
        ends = sum(((p * d).sum() for p, d in zip(h, dh, strict=True)), mx.array(0.0))
        return (y * dy).sum() + ends

    return mx.grad(loss)(arrays)


@pytest.mark.parametrize("one_gate_per_head", [True, False], ids=["a head", "a channel"])
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_the_derivative_of_the_gradient(is_complex, one_gate_per_head):
    """Along a direction, against differences of the float64 gradient."""
    case = random_case(
        5, 70, heads=(1, 2, 3), is_complex=is_complex, one_gate_per_head=one_gate_per_head
    )
    rng, step = np.random.default_rng(1), 1e-6
    weights = [rng.normal(size=w.shape) for w in wanted(case)]
    directions = {n: rng.normal(size=getattr(case, n).shape) for n in NAMES}

    def dot(sign):
        moved = {n: getattr(case, n) + sign * step * d for n, d in directions.items()}
        pairs = zip(wanted(replace(case, **moved)), weights, strict=True)
        return float(sum((g * w).sum() for g, w in pairs))

    def weighted(arrays):
        pairs = zip(gradient(case, arrays), to_mlx(weights), strict=True)
        return sum(((g * w).sum() for g, w in pairs), mx.array(0.0))

    second = mx.grad(weighted)(arrays_of(case))
    moved = planes(case, directions)
    along = sum((as_numpy(s) * m).sum() for s, m in zip(second, moved, strict=True))
    assert along == pytest.approx((dot(1) - dot(-1)) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_groups_change_no_number_and_no_transformation(is_complex):
    case = random_case(7, 200, heads=(2, 3, 4), is_complex=is_complex)
    arrays = arrays_of(case)
    count = (len(arrays) - 3) // 2
    pairs = [mx.stack([x, 0.5 * x]) for x in arrays]

    def forward(*xs):
        y, h = chunked_gate_loop(*xs[:3], xs[3 : 3 + count], xs[3 + count :])
        return [y, *h]

    def all_of_them():
        def gradients(*xs):
            return gradient(case, list(xs))

        found = [*forward(*arrays), *mx.jvp(forward, arrays, arrays)[1]]
        found += [*mx.vmap(forward)(*pairs), *mx.vmap(gradients)(*pairs)]
        return [*found, *mx.compile(gradients)(*arrays)]

    one = all_of_them()
    with mock.patch.object(chunked, "GROUP", 1):
        several = all_of_them()
    for got, want in zip(several, one, strict=True):
        assert error(got, as_numpy(want)) < 1e-6


def test_memory_of_the_gradient_is_that_of_its_arrays_and_a_state_a_chunk():
    K, V = 32, 64

    def loss(q, k, v, a, h0, weight):
        y, _ = chunked_gate_loop(q, k, v, (a,), (h0,))
        return (y * weight).sum()

    def peak(length):
        xs = [mx.random.normal((1, length, 1, n)) for n in (K, K, V)]
        xs += [mx.random.uniform(-0.7, 0.7, (1, length, 1, K)), mx.zeros((1, 1, K, V))]
        xs.append(mx.random.normal((1, length, 1, V)))
        return peak_memory(mx.grad(loss, argnums=tuple(range(5))), *xs)

    with mock.patch.object(chunked, "GROUP", 1 << 15):
        short, long = peak(1024), peak(4096)
    assert long < 4 * 4096 * (2 * (2 * K + 2 * V) + K * V // chunked.CHUNK)
    assert long < 4.2 * short
