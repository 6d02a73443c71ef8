"""The operator with heads in the C++ extension: forms, sizes, chunks, threads and derivatives."""

from functools import partial
from itertools import product

import mlx.core as mx
import pytest
from helpers import gated
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, needs_native, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl

pytestmark = needs_native
FUSED = partial(gl.gate_loop, mode="scan", backend="cpu")


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def arrays_of(batch, length, heads, keys, values, *, count=5):
    """q, k, v, gamma and, of five, theta."""
    widths = [keys, keys, values, keys, keys][:count]
    return [normal(batch, length, heads, width, key=i) for i, width in enumerate(widths)]


def operator(q, k, v, *gates, backend="cpu", **options):
    return gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates), backend=backend, **options)


@pytest.mark.parametrize(
    ("form", "is_complex", "one_gate_per_head", "masked", "reverse"),
    [
        (form, is_complex, shared, masked, (form == "polar") ^ is_complex ^ shared ^ (masked > 0))
        for form in ("sigmoid", "polar")
        for is_complex, shared, masked in product([True, False], [True, False], [0.0, 0.3])
    ],  # half of the product: every four of the five values meet
)
def test_fused_gates_and_their_gradients(form, is_complex, one_gate_per_head, masked, reverse):
    case = random_case(
        4,
        70,
        heads=(2, 5, 3),
        is_complex=is_complex,
        one_gate_per_head=one_gate_per_head,
        masked=masked,
        reverse=reverse,
    )
    gated.check(FUSED, case, form)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    length=st.sampled_from([1, 2, 3, 7, 33, 63, 64, 65, 128, 130]),
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    keys=st.sampled_from([1, 3, 16, 17, 40]),
    values=st.sampled_from([1, 5, 32, 33, 48]),
    is_complex=st.booleans(),
    shared=st.booleans(),
    closed=st.sampled_from([0.0, 0.2]),
)
def test_any_sizes(seed, length, batch, heads, keys, values, is_complex, shared, closed):
    case = random_case(
        seed,
        length,
        batch=batch,
        heads=(heads, keys, values),
        is_complex=is_complex,
        one_gate_per_head=shared,
    )
    gated.check(FUSED, case, "sigmoid", cancels=True, closed=closed, seed=seed)


@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("shared", [True, False])
def test_a_single_step(is_complex, masked, shared):
    options = {"is_complex": is_complex, "one_gate_per_head": shared, "masked": masked}
    gated.check(FUSED, random_case(4, 1, batch=4, heads=(3, 17, 40), **options), "sigmoid")
    arrays = arrays_of(2, 1, 3, 9, 17, count=4 + is_complex)
    without, last = operator(*arrays)
    same, state = operator(*arrays, h0=mx.zeros_like(last))
    assert mx.array_equal(without, same)
    assert mx.array_equal(last, state)


def test_one_key_and_one_value_are_a_channel():
    q, k, v, gamma, theta = arrays_of(2, 70, 5, 1, 1)
    y, h = operator(q, k, v, gamma, theta)
    flat_y, flat_h = operator(*(x[..., 0] for x in (q, k, v, gamma, theta)))
    assert error(y, as_numpy(flat_y)) < 1e-6
    assert error(h, as_numpy(flat_h)) < 1e-6


def test_more_keys_than_a_tile_of_gates():
    arrays = arrays_of(1, 3, 1, 600, 2)
    for got, want in zip(operator(*arrays), operator(*arrays, backend="mlx"), strict=True):
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

    for got, want in zip(seconds("cpu"), seconds("mlx"), strict=True):
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
    from mlx_gateloop.ops.cpu import extension

    call, x = extension().gate_loop_heads, mx.zeros((1, 4, 2, 3))
    for place, name in enumerate(["q and k", "q and k", "v is", "a is", "both planes", "h0 is"]):
        arrays = [x, x, x, x, x, mx.zeros((1, 2, 2, 3, 3))]
        arrays[place] = mx.zeros((1, 3, 2, 3))
        with pytest.raises(ValueError, match=name):
            call(*arrays, None, form=0, reverse=False)
    with pytest.raises(ValueError, match="mask is"):
        call(x, x, x, x, x, None, mx.zeros((1, 3), mx.bool_), form=0, reverse=False)
