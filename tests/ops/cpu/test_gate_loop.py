"""The operator and the scan in the C++ extension: sizes, types, derivatives and compilation."""

import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers import gated
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, needs_native, normal, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.ops.cpu import extension

pytestmark = needs_native
FUSED = partial(gl.gate_loop, mode="scan", backend="cpu")
HALVES = (mx.float16, mx.bfloat16)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
max_headed_and_heads = pytest.mark.parametrize("heads", [False, True], ids=["max-headed", "heads"])


def arrays_of(batch, length, *heads, count=5):
    """q, k, v, gamma and, of five, theta; `heads` is D, or H, K and V."""
    H, K, V = (*heads, 0, 0)[:3]
    sizes = [(H, n) for n in (K, K, V, K, K)] if K else [heads] * 5
    return [normal(batch, length, *size, key=i) for i, size in enumerate(sizes[:count])]


def steps(length, heads, count=5):
    return arrays_of(2, length, *((2, 9, 17) if heads else (9,)), count=count)


def operator(q, k, v, *gates, backend="cpu", **options):
    a = gl.Transition.sigmoid(*gates)
    return gl.gate_loop(q, k, v, a, mode="scan", backend=backend, **options)


@pytest.mark.parametrize("backend", ["cpu", "mlx"])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    length=st.sampled_from([1, 2, 3, 7, 33, 63, 64, 65, 128, 130]),
    batch=st.integers(1, 2),
    heads=st.tuples(
        st.integers(1, 3), st.sampled_from([1, 3, 16, 17, 40]), st.sampled_from([1, 5, 32, 33, 48])
    ),
    is_complex=st.booleans(),
    one_gate_per_head=st.booleans(),
    masked=st.sampled_from([0.0, 0.3]),
    reverse=st.booleans(),
    form=st.sampled_from(["sigmoid", "polar"]),
    closed=st.sampled_from([0.0, 0.2]),
)
def test_any_sizes_gates_masks_and_directions(backend, seed, length, form, closed, **options):
    run, case = partial(FUSED, backend=backend), random_case(seed, length, **options)
    by = 4e-6 if backend == "mlx" else 2e-6  # as in ../test_gate_loop.py
    gated.check(run, case, form, cancels=True, closed=closed, seed=seed, by=by)


@pytest.mark.parametrize(
    ("length", "heads"),
    [*((40, (n, 1, 1)) for n in (1, 15, 33, 512, 513, 1100)), (3, (1, 600, 2))],  # tiles of gates
)
def test_sizes_at_the_edges_of_tiles(length, heads):
    gated.check(FUSED, random_case(4, length, heads=heads))


def test_one_key_and_one_value_are_a_channel():
    arrays = arrays_of(2, 70, 5, 1, 1)
    for got, want in zip(operator(*arrays), operator(*(x[..., 0] for x in arrays)), strict=True):
        assert error(got, as_numpy(want)) < 1e-6


@pytest.mark.parametrize("is_complex", [True, False])
def test_a_single_step_without_a_state_begins_with_zeros(is_complex):
    arrays = arrays_of(2, 1, 3, 9, 17, count=4 + is_complex)
    without, last = operator(*arrays)
    same, state = operator(*arrays, h0=mx.zeros_like(last))
    assert mx.array_equal(without, same)
    assert mx.array_equal(last, state)


@max_headed_and_heads
def test_threads_and_their_blocks_change_no_bit(heads):
    # More work than one thread gets, in rows that no block divides; each part alone is less.
    arrays = arrays_of(3, 130, 3, 9, 17) if heads else arrays_of(5, 300, 77)
    slopes = mx.grad(lambda *xs: operator(*xs)[0].square().sum(), argnums=(0, 1, 2, 3, 4))
    (whole, last), gradients = operator(*arrays), slopes(*arrays)
    parts = [np.s_[b : b + 1, :, h : h + 1] for b, h in product(range(3), range(3))]
    for part in parts if heads else [np.s_[b : b + 1] for b in range(5)]:
        alone = [x[part] for x in arrays]
        y, state = operator(*alone)
        assert mx.array_equal(y, whole[part])
        assert mx.array_equal(state, last[part])
        for got, want in zip(slopes(*alone), gradients, strict=True):
            assert mx.array_equal(got, want[part])


def test_a_mask_made_of_the_inputs_has_no_gradient():
    q, h0 = normal(2, 5, 3), normal(2, 2, 3, key=1)
    masks = [lambda q: mx.isnan(q[..., 0]), lambda q: q.max(-1) > 0.5]
    masks += [lambda q: mx.logical_and(q.sum(-1) > 0, q[..., 0] < 3)]

    def loss(q, mask, state, backend="cpu"):
        y, h = operator(q, q, q, q, q, h0=state, mask=mask(q), backend=backend)
        return y.square().sum() + h.sum()

    for mask, state in product(masks, (None, h0)):
        slope = mx.grad(loss)
        assert error(slope(q, mask, state), as_numpy(slope(q, mask, state, "mlx"))) < 2e-6
        second = mx.grad(lambda q, *of: mx.grad(loss)(q, *of).sum())
        assert mx.isfinite(second(q, mask, state)).all()
    _, (_, by_mask) = mx.vjp(
        lambda q, m: operator(q, q, q, q, q, h0=h0, mask=m)[:1], [q, q[..., 0] > 0], [q]
    )
    assert by_mask.shape == (2, 5)


def test_a_real_transition_that_overflows_leaves_the_imaginary_plane_alone():
    x, h0 = mx.ones((1, 60, 1)), mx.ones((1, 2, 1))
    slope = mx.grad(lambda h0: gl.gate_loop(x, x, x, 1e3 * x, h0, backend="cpu")[0].sum())(h0)
    assert slope[0, 1, 0].item() == 0


def check_second_derivatives(loss, size, dtype=mx.float32):
    """Compare them under mx.vmap, of five arrays `[1, 5, *size]`, with those of plain MLX."""
    x, t = (normal(3, 5, 1, 5, *size, key=i).astype(dtype) for i in range(2))

    def along(x, t, backend):
        return mx.jvp(lambda x: mx.grad(loss)(x, backend), [x], [t])[1][0]

    def second(x, t, backend):
        return mx.grad(lambda x: (mx.grad(loss)(x, backend) * t).astype(mx.float32).sum())(x)

    for derivative in (along, second):
        got = mx.vmap(lambda x, t, of=derivative: of(x, t, "cpu"))(x, t)
        want = mx.stack([derivative(*pair, "mlx") for pair in zip(x, t, strict=True)])
        assert got.dtype == dtype
        # with half types, both round their first derivative
        assert error(got, as_numpy(want)) < (1e-5 if dtype == mx.float32 else 0.05)


@max_headed_and_heads
@pytest.mark.parametrize(("dtype", "is_complex", "has_h0"), [
    *((mx.float32, *bits) for bits in product([True, False], repeat=2)),
    *((dtype, True, True) for dtype in HALVES),
])  # fmt: skip
def test_second_derivatives_of_the_operator(heads, dtype, is_complex, has_h0):
    mask = mx.arange(5)[None] != 3 if heads ^ is_complex ^ has_h0 else None
    state = (1, 1 + is_complex, *((2, 3, 2) if heads else (5,)))
    h0 = normal(*state, key=2) if has_h0 else None

    def loss(x, backend):
        q, k, v, *gates = x
        v = v[..., :2] if heads else v
        options = {"h0": h0, "mask": mask, "reverse": heads ^ is_complex, "backend": backend}
        y, h = operator(q, k, v, *gates[: 1 + is_complex], **options)
        return y.astype(mx.float32).square().sum() + h.square().sum()

    check_second_derivatives(loss, (2, 3) if heads else (5,), dtype)


@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_second_derivatives_of_the_scan(is_complex, reverse):
    def loss(x, backend):
        a, z, *imaginary, start = x
        if is_complex:
            a, z = (x + 1j * y for x, y in zip((a, z), imaginary, strict=True))
        h = gl.linear_scan(0.5 * a, z, start[:, :1].squeeze(1), reverse=reverse, backend=backend)
        return mx.real(h).square().sum() + mx.imag(h).square().sum()

    check_second_derivatives(loss, (5,))


# The loss's gradient by y, and of the operator five gradients and states: without heads 2 / 32 of a
# plane; with heads y too, and two planes [32, 32] every 64 steps.
@pytest.mark.parametrize(
    ("length", "size", "most"), [(65536, (64,), 1 + 5.1), (16384, (2, 32, 32), 2 + 5 + 1.1)]
)
def test_memory_of_the_gradient_is_linear_in_length(length, size, most):
    arrays, weight = arrays_of(1, length, *size), normal(1, length, *size[:2], key=5)
    gradient = mx.grad(lambda *xs: (operator(*xs)[0] * weight).sum(), argnums=(0, 1, 2, 3, 4))
    mx.eval(weight)
    assert peak_memory(gradient, *arrays) / arrays[0].nbytes < most


def test_a_wrong_call_raises_before_it_reads():
    native, x, y = extension(), mx.zeros((1, 4, 2)), mx.zeros((1, 4, 2, 3))
    with pytest.raises(ValueError, match="q, k, v and a"):
        native.gate_loop(x, x, x, mx.zeros((1, 3, 2)), None, None, None, form=0, reverse=False)
    with pytest.raises(ValueError, match="mask"):
        native.gate_loop(x, x, x, x, None, None, x, form=0, reverse=False)
    with pytest.raises(ValueError, match="a and x have one shape"):
        native.linear_scan([x], [mx.zeros((1, 4, 3))], [])
    with pytest.raises(ValueError, match=r"targets \[...\]"):
        native.cross_entropy(x[0], mx.zeros((3,), mx.int64))
    for index, name in enumerate(["q and k", "q and k", "v is", "a is", "both planes", "h0 is"]):
        arrays = [y, y, y, y, y, mx.zeros((1, 2, 2, 3, 3))]
        arrays[index] = mx.zeros((1, 3, 2, 3))
        with pytest.raises(ValueError, match=name):
            native.gate_loop_heads(*arrays, None, form=0, reverse=False)
    mask = mx.zeros((1, 3), mx.bool_)
    with pytest.raises(ValueError, match="mask is"):
        native.gate_loop_heads(y, y, y, y, y, None, mask, form=0, reverse=False)


@max_headed_and_heads
def test_shapeless_compilation(heads):
    compiled = mx.compile(lambda *xs: operator(*xs), shapeless=True)
    for length in (20, 64, 150):
        arrays = steps(length, heads)
        for got, want in zip(compiled(*arrays), operator(*arrays), strict=True):
            assert mx.array_equal(got, want)


def test_no_shapeless_call_reads_beyond_its_arrays():
    program = [sys.executable, str(Path(__file__).with_name("shapeless.py")), "40", "1"]
    child = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode == 0, child.stdout[-500:] + child.stderr[-2000:]


def passed_through(x, dtype):
    """x through the operator as q, with a state of 1, into an output of this type."""
    q, one = x.reshape(1, x.size, 1), mx.ones((1, x.size, 1))
    y, _ = FUSED(q, one, one.astype(dtype), 0 * one)
    assert y.dtype == dtype
    return y.reshape(-1)


def bits(x):
    return np.array(mx.where(mx.isnan(x), mx.array(float("nan"), x.dtype), x).view(mx.uint16))


@every_half
def test_every_half_number_is_kept(dtype):
    x = mx.arange(2**16).astype(mx.uint16).view(dtype)
    assert (bits(passed_through(x, dtype)) == bits(x)).all()
    np.testing.assert_array_equal(as_numpy(passed_through(x, mx.float32)), as_numpy(x))


@every_half
@settings(max_examples=100)
@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
def test_outputs_are_rounded_as_mlx_rounds(dtype, numbers):
    x = mx.array(np.array(numbers, np.float32))
    assert (bits(passed_through(x, dtype)) == bits(x.astype(dtype))).all()


@max_headed_and_heads
@pytest.mark.parametrize("is_complex", [False, True])
def test_every_array_may_have_a_type_of_its_own(is_complex, heads):
    types = mx.float16, mx.bfloat16, mx.float32, mx.bfloat16, mx.float16
    wide = steps(70, heads, 4 + is_complex)
    arrays = [x.astype(dtype) for x, dtype in zip(wide, types, strict=False)]
    wide = [x.astype(mx.float32) for x in arrays]

    def run(*xs):
        return list(operator(*xs)[:1])

    (y,), found = mx.vjp(run, arrays, [arrays[2]])
    (want_y,), want = mx.vjp(run, wide, [wide[2]])
    assert mx.array_equal(y, want_y)
    for x, got, exact in zip(arrays, found, want, strict=True):
        assert got.dtype == x.dtype
        assert mx.array_equal(got, exact.astype(x.dtype))


@every_half
def test_keys_are_summed_in_float32_along_a_tangent_too(dtype):
    q, v = mx.ones((1, 1, 1, 256)).astype(dtype), mx.ones((1, 1, 1, 1)).astype(dtype)
    k = mx.where(mx.arange(256) % 2 == 0, 256, -255).astype(dtype).reshape(q.shape)  # cancels
    (y,), (moved,) = mx.jvp(lambda v: [FUSED(q, k, v, mx.zeros((1, 1, 1, 1)))[0]], [v], [v])
    assert y.item() == moved.item() == k.astype(mx.float32).sum().item()
