"""The gradient of heads, written by hand: against float64, its memory, and its own derivative."""

from dataclasses import replace
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.reference import Case, as_numpy, error, gradients, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.ops import chunked
from mlx_gateloop.ops.chunked import chunked_gate_loop

NAMES = ("q", "k", "v", "a", "h0")


def planes(case: Case, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Real parts of q, k, v, a and h0, and if the case is complex imaginary ones of a and h0."""
    both = ("a", "h0") if np.iscomplexobj(case.a) else ()
    parts = [(arrays[n].real, arrays[n].imag)[: 1 + (n in both)] for n in NAMES]
    return [part for pair in parts for part in pair]


def arrays_of(case: Case) -> list[mx.array]:
    return to_mlx(planes(case, vars(case)))


def wanted(case: Case) -> list[np.ndarray]:
    return planes(case, gradients(case))


def to_mlx(arrays: list[np.ndarray]) -> list[mx.array]:
    return [mx.array(x.astype(np.float32)) for x in arrays]


def gradient(case: Case, arrays: list[mx.array]) -> list[mx.array]:
    """Gradients of q, k, v, a and h0 by the loss that `reference.gradients` has."""
    count = (len(arrays) - 3) // 2
    dy, *dh = to_mlx([case.dy, case.dh.real, case.dh.imag][: 1 + count])

    def loss(arrays: list[mx.array]) -> mx.array:
        q, k, v, *rest = arrays
        y, h = chunked_gate_loop(q, k, v, tuple(rest[:count]), tuple(rest[count:]))
        ends = sum(((p * d).sum() for p, d in zip(h, dh, strict=True)), mx.array(0.0))
        return (y * dy).sum() + ends

    return mx.grad(loss)(arrays)


@given(
    seed=st.integers(0, 99),
    length=st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 127, 128, 129, 200])),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5)),
    is_complex=st.booleans(),
    one_gate_per_head=st.booleans(),
    resets=st.sampled_from([0.0, 0.3, 1.0]),
    group=st.sampled_from([1, chunked.GROUP]),
)
@settings(max_examples=25)
def test_any_size_any_resets(seed, length, heads, is_complex, one_gate_per_head, resets, group):
    options = {"is_complex": is_complex, "one_gate_per_head": one_gate_per_head}
    case = random_case(seed, length, heads=heads, resets=resets, **options)
    with mock.patch.object(chunked, "GROUP", group):
        found = gradient(case, arrays_of(case))
    for got, want in zip(found, wanted(case), strict=True):
        assert error(got, want) < 4e-6


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

    def dot(sign: int) -> float:
        moved = {n: getattr(case, n) + sign * step * d for n, d in directions.items()}
        pairs = zip(wanted(replace(case, **moved)), weights, strict=True)
        return float(sum((g * w).sum() for g, w in pairs))

    def weighted(arrays: list[mx.array]) -> mx.array:
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

    def forward(*xs: mx.array) -> list[mx.array]:
        y, h = chunked_gate_loop(*xs[:3], xs[3 : 3 + count], xs[3 + count :])
        return [y, *h]

    def all_of_them() -> list[mx.array]:
        def gradients(*xs: mx.array) -> list[mx.array]:
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
