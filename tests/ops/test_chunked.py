"""The gradient of heads, written by hand: its own derivative, its groups and its memory."""

from unittest import mock

import mlx.core as mx
import pytest
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, inputs, normal, random_case

import mlx_gateloop as gl
from mlx_gateloop.ops import chunked


def operator(*arrays, mode="scan"):
    q, k, v, *a, h0 = arrays
    a = gl.Transition("cartesian", *a)
    return list(gl.gate_loop(q, k, v, a, h0, mode=mode, backend="mlx"))


def arrays_of(*case, **options):
    """q, k, v, the parts of a, h0, and cotangents of y and of the last state."""
    q, k, v, a, h0 = inputs(random_case(*case, **options))
    a = [mx.real(a), mx.imag(a)] if a.dtype == mx.complex64 else [a]
    return [q, k, v, *a, h0], [normal(*v.shape, key=1), normal(*h0.shape, key=2)]


@pytest.mark.parametrize("one_gate_per_head", [True, False], ids=["a head", "a channel"])
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_the_derivative_of_the_gradient(is_complex, one_gate_per_head):
    options = {"is_complex": is_complex, "one_gate_per_head": one_gate_per_head}
    arrays, cotangents = arrays_of(5, 70, heads=(1, 2, 3), **options)
    weights = [normal(*x.shape, key=3) for x in arrays]

    def weighted(mode, arrays):
        found = mx.vjp(lambda *xs: operator(*xs, mode=mode), arrays, cotangents)[1]
        return sum(((g * w).sum() for g, w in zip(found, weights, strict=True)), mx.array(0.0))

    found, wanted = (mx.grad(weighted, 1)(mode, arrays) for mode in ("scan", "recurrent"))
    for got, want in zip(found, wanted, strict=True):
        assert error(got, as_numpy(want)) < 1e-5


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_groups_change_no_number_and_no_transformation(is_complex):
    arrays, cotangents = arrays_of(7, 200, heads=(2, 3, 4), is_complex=is_complex)
    pairs = [mx.stack([x, 0.5 * x]) for x in arrays]

    def gradients(*xs):
        return mx.vjp(operator, list(xs), cotangents)[1]

    def all_of_them():
        found = [*operator(*arrays), *mx.jvp(operator, arrays, arrays)[1]]
        found += [*mx.vmap(operator)(*pairs), *mx.vmap(gradients)(*pairs)]
        return [*found, *mx.compile(gradients)(*arrays)]

    one = all_of_them()
    with mock.patch.object(chunked, "GROUP", 1):
        several = all_of_them()
    for got, want in zip(several, one, strict=True):
        assert error(got, as_numpy(want)) < 1e-6


def test_memory_of_the_gradient_is_that_of_its_arrays_and_a_state_a_chunk():
    K, V = 32, 64

    def peak(length):
        arrays, (w, _) = arrays_of(9, length, batch=1, heads=(1, K, V), is_complex=False, resets=0)
        gradient = mx.grad(lambda *xs: (operator(*xs)[0] * w).sum(), argnums=tuple(range(5)))
        mx.eval(w)
        return peak_memory(gradient, *arrays)

    with mock.patch.object(chunked, "GROUP", 1 << 15):
        short, long = peak(1024), peak(4096)
    assert long < 4 * 4096 * (2 * (2 * K + 2 * V) + K * V // chunked.CHUNK)
    assert long < 4.2 * short
