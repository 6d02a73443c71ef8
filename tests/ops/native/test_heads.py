"""The operator with heads in the C++ extension: forms, sizes, chunks, threads and derivatives."""

from dataclasses import replace
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.reference import (
    as_numpy,
    error,
    forward,
    gradients,
    needs_native,
    random_case,
    to_planes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl

pytestmark = needs_native


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def arrays_of(batch, length, heads, keys, values, *, count=5):
    """q, k, v, gamma and, of five, theta."""
    widths = [keys, keys, values, keys, keys][:count]
    return [normal(batch, length, heads, width, key=i) for i, width in enumerate(widths)]


def operator(q, k, v, *gates, backend="native", **options):
    return gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates), backend=backend, **options)


@pytest.mark.parametrize(
    ("form", "is_complex", "one_gate_per_head", "masked", "reverse"),
    list(product(["sigmoid", "polar"], [True, False], [True, False], [0.0, 0.3], [True, False])),
)
def test_fused_gates_and_their_gradients(form, is_complex, one_gate_per_head, masked, reverse):
    case = random_case(
        4,
        70,
        heads=(2, 5, 3),
        one_gate_per_head=one_gate_per_head,
        masked=masked,
        reverse=reverse,
        resets=0,
    )
    first = np.random.default_rng(1).normal(size=case.a.shape).astype(np.float32).astype(np.float64)
    if form == "polar":
        first = -np.abs(first)
    theta = np.angle(case.a).astype(np.float32).astype(np.float64)
    magnitude = 1 / (1 + np.exp(-first)) if form == "sigmoid" else np.exp(first)
    case = replace(case, a=magnitude * (np.exp(1j * theta) if is_complex else 1))

    want = gradients(case)
    slope = 1 - magnitude if form == "sigmoid" else 1
    wanted = [want["q"], want["k"], want["v"], slope * (want["a"] * np.conj(case.a)).real]
    if is_complex:
        wanted.append((want["a"] * np.conj(1j * case.a)).real)
    wanted.append(as_numpy(to_planes(want["h0"])))

    gates = [first, theta] if is_complex else [first]
    arrays = [mx.array(x.astype(np.float32)) for x in (case.q, case.k, case.v, *gates)]
    arrays.append(to_planes(case.h0))
    dy, dh = mx.array(case.dy.astype(np.float32)), to_planes(case.dh)

    def outputs(q, k, v, *rest):
        a = getattr(gl.Transition, form)(*rest[:-1])
        mask = None if case.mask.all() else mx.array(case.mask.copy())
        return gl.gate_loop(q, k, v, a, rest[-1], mask=mask, reverse=reverse, backend="native")

    def loss(*arrays):
        y, h = outputs(*arrays)
        return (y * dy).sum() + (h * dh).sum()

    y, h = outputs(*arrays)
    want_y, want_h, _ = forward(case)
    assert error(y, want_y) < 2e-6
    assert error(h, as_numpy(to_planes(want_h))) < 2e-6
    got = mx.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)
    for g, w in zip(got, wanted, strict=True):
        assert error(g, w) < 4e-6


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 2),
    length=st.sampled_from([1, 2, 3, 7, 33, 63, 64, 65, 128, 130]),
    heads=st.integers(1, 3),
    keys=st.sampled_from([1, 3, 16, 17, 40]),
    values=st.sampled_from([1, 5, 32, 33, 48]),
    count=st.sampled_from([4, 5]),
    shared=st.booleans(),
    reset=st.booleans(),
)
def test_any_sizes(batch, length, heads, keys, values, count, shared, reset):
    arrays = arrays_of(batch, length, heads, keys, values, count=count)
    if shared:
        arrays[3:] = [x[..., :1] for x in arrays[3:]]
    if reset:  # sigmoid(-200) is 0 in float32
        arrays[3] = mx.where(mx.arange(length)[:, None, None] % 5 == 2, -200, arrays[3])
    weight = normal(batch, length, heads, values, key=9)

    def results(backend):
        def loss(*xs):
            y, h = operator(*xs, backend=backend, mode="scan")
            return (y * weight).sum() + h.square().sum()

        slopes = mx.grad(loss, argnums=tuple(range(count)))(*arrays)
        return [*operator(*arrays, backend=backend, mode="scan"), *slopes]

    for got, want in zip(results("native"), results("ops"), strict=True):
        assert error(got, as_numpy(want)) < 1e-4  # sums over a shared gate cancel


def test_more_keys_than_a_tile_of_gates():
    arrays = arrays_of(1, 3, 1, 600, 2)
    for got, want in zip(operator(*arrays), operator(*arrays, backend="ops"), strict=True):
        assert error(got, as_numpy(want)) < 2e-6


def test_threads_change_no_bit():
    arrays = arrays_of(3, 130, 3, 9, 17)
    whole, last = operator(*arrays)
    slopes = mx.grad(lambda *xs: operator(*xs)[0].square().sum(), argnums=(0, 1, 2, 3, 4))
    for b, h in product(range(3), range(3)):
        one = [x[b : b + 1, :, h : h + 1] for x in arrays]
        y, state = operator(*one)
        assert mx.array_equal(y, whole[b : b + 1, :, h : h + 1])
        assert mx.array_equal(state, last[b : b + 1, :, h : h + 1])
        for got, want in zip(slopes(*one), slopes(*arrays), strict=True):
            assert mx.array_equal(got, want[b : b + 1, :, h : h + 1])


def test_a_state_carried_over_a_chunk_changes_no_bit():
    arrays = arrays_of(1, 150, 2, 9, 17)
    whole, last = operator(*arrays)
    first, h = operator(*(x[:, :64] for x in arrays))
    second, h = operator(*(x[:, 64:] for x in arrays), h0=h)
    assert mx.array_equal(mx.concatenate([first, second], 1), whole)
    assert mx.array_equal(h, last)


def test_inputs_of_any_layout():
    arrays = arrays_of(2, 40, 3, 4, 5)
    turned = [mx.contiguous(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0) for x in arrays]
    for got, want in zip(operator(*turned), operator(*arrays), strict=True):
        assert mx.array_equal(got, want)


@pytest.mark.parametrize("count", [4, 5])
def test_shapeless_compilation(count):
    compiled = mx.compile(lambda *xs: operator(*xs), shapeless=True)
    for length in (20, 64, 150):
        arrays = arrays_of(2, length, 2, 4, 5, count=count)
        for got, want in zip(compiled(*arrays), operator(*arrays), strict=True):
            assert mx.array_equal(got, want)


@pytest.mark.parametrize("count", [4, 5])
def test_second_derivatives(count):
    arrays = arrays_of(1, 9, 2, 3, 4, count=count)
    h0, mask = normal(1, 2, 2, 3, 4, key=7), mx.arange(9)[None] != 4
    directions = [normal(*x.shape, key=20 + i) for i, x in enumerate(arrays)]
    everything = tuple(range(count))

    def seconds(backend):
        def along(*xs):
            def loss(*xs):
                y, h = operator(*xs, h0=h0, mask=mask, backend=backend)
                return y.square().sum() + h.square().sum()

            slopes = mx.grad(loss, argnums=everything)(*xs)
            return sum((g * d).sum() for g, d in zip(slopes, directions, strict=True))

        return mx.grad(along, argnums=everything)(*arrays)

    for got, want in zip(seconds("native"), seconds("ops"), strict=True):
        assert error(got, as_numpy(want)) < 1e-5


def test_memory_of_the_gradient_is_linear_in_length():
    def planes(length):
        *arrays, weight = [normal(1, length, 2, 32, key=i) for i in range(6)]
        gradient = mx.grad(lambda *xs: (operator(*xs)[0] * weight).sum(), argnums=(0, 1, 2, 3, 4))
        mx.eval(weight)
        return peak_memory(gradient, *arrays) / arrays[0].nbytes

    # y and its gradient, five gradients, and states of two planes [32, 32] every 64 steps
    assert planes(16384) < 2 + 5 + 1.1


def test_a_wrong_call_raises_before_it_reads():
    from mlx_gateloop.ops.native import extension

    call, x = extension().gate_loop_heads, mx.zeros((1, 4, 2, 3))
    for place, name in enumerate(["q and k", "q and k", "v is", "a is", "both planes", "h0 is"]):
        arrays = [x, x, x, x, x, mx.zeros((1, 2, 2, 3, 3))]
        arrays[place] = mx.zeros((1, 3, 2, 3))
        with pytest.raises(ValueError, match=name):
            call(*arrays, None, form=0, reverse=False)
    with pytest.raises(ValueError, match="mask is"):
        call(x, x, x, x, x, None, mx.zeros((1, 3), mx.bool_), form=0, reverse=False)
