"""The fused operator of the GPU kernels beside the float64 loops of `reference`.

What is for heads alone is in test_heads.
"""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from harness.platforms import METAL, PLATFORMS, kernels_of
from helpers import gated
from helpers.reference import as_numpy, error, forward, random_case, to_planes

from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, plan
from mlx_gateloop.ops.transition import Transition

on_all = pytest.mark.parametrize("platform", PLATFORMS)
on_metal = pytest.mark.parametrize("platform", METAL)
# Sizes of a step's keys and values.
max_headed_and_heads = pytest.mark.parametrize(
    ("keys", "values"), [((3,), (3,)), ((2, 5), (2, 3))], ids=["max-headed", "heads"]
)


def check(platform, *arguments, **options):
    return gated.check(partial(gpu.gate_loop, kernels_of(platform)), *arguments, **options)


@on_all
@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize(
    ("form", "masked", "reverse"),
    [
        ("sigmoid", 0.0, False),
        ("sigmoid", 0.3, True),
        ("polar", 0.3, False),
        ("cartesian", 0.0, True),
    ],
)
def test_gates_masks_and_directions(platform, form, is_complex, masked, reverse):
    options = {"masked": masked, "reverse": reverse, "is_complex": is_complex}
    check(platform, random_case(4, 139, heads=(37, 1, 1), **options), form)


@on_all
@pytest.mark.parametrize(
    ("dtype", "gate_dtype"), [(mx.float16, mx.float32), (mx.bfloat16, mx.bfloat16)]
)
def test_half_types(platform, dtype, gate_dtype):
    case = random_case(5, 70, heads=(5, 1, 1), dtype=dtype)
    check(platform, case, "sigmoid", dtype, gate_dtype)


@on_metal
@pytest.mark.parametrize(
    ("batch", "length", "width"), [(1, 1, 1), (1, 3, 2), (2, 1, 33), (2, 64, 32), (3, 65, 64)]
)
def test_shapes_at_the_edges_of_tiles(platform, batch, length, width):
    check(platform, random_case(6, length, batch=batch, heads=(width, 1, 1)), "sigmoid")


@on_all
@pytest.mark.parametrize(
    ("is_complex", "masked", "reverse"), [(True, 0.3, True), (False, 0.0, False)]
)
def test_a_long_sequence_in_parts(platform, is_complex, masked, reverse):
    length = 3001
    parts = plan(DEFAULTS[platform[0]], "forward 32", 1, length, 5).parts
    assert parts > 1
    assert length % parts
    options = {"masked": masked, "reverse": reverse, "is_complex": is_complex}
    case = random_case(7, length, batch=1, heads=(5, 1, 1), **options)
    # A memory of 400 steps sums more roundings: over ten seeds up to 1.1e-6.
    check(platform, case, "sigmoid", shift=6, rounding=2e-6)


@on_metal
def test_a_large_batch(platform):
    batch = 264
    tuning = DEFAULTS[platform[0]]
    many, few = (plan(tuning, "forward 32", groups, 70, 1) for groups in (batch, 1))
    assert many.segments < few.segments
    check(platform, random_case(8, 70, batch=batch, heads=(1, 1, 1)), "sigmoid")


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def rows(live, x):
    """The mask of steps, for arrays of this shape."""
    return live.reshape(*live.shape, *[1] * (x.ndim - 2))


@on_metal
@max_headed_and_heads
def test_after_a_reset_nothing_before_it_is_left(platform, keys, values):
    sizes = (keys, keys, values, keys)
    q, k, v, phase = (normal(1, 70, *size, key=i) for i, size in enumerate(sizes))
    log = mx.where(rows(mx.arange(70)[None] == 40, phase), -mx.inf, mx.zeros(phase.shape))

    def run(start):
        arrays = [x[:, start:] for x in (q, k, v)]
        a = Transition.polar(log[:, start:], phase[:, start:])
        return gpu.gate_loop(kernels_of(platform), *arrays, a, None, None, False)

    for whole, rest in zip(run(0), run(40), strict=True):
        assert error(whole[:, -rest.shape[1] :], as_numpy(rest)) <= 1e-6


@on_metal
@pytest.mark.parametrize(
    ("heads", "shift", "turn"),
    [
        ((4, 1, 1), 8, 0.001),
        ((4, 1, 1), 8, 1),
        ((4, 1, 1), 20, 0),
        ((1, 3, 2), 8, 0.001),
        pytest.param((1, 3, 2), 20, 0, marks=pytest.mark.slow),
    ],
)
def test_a_memory_of_thousands_of_steps(platform, heads, shift, turn):
    case = random_case(10, 4096, batch=1, heads=heads, resets=0)
    case, gates, _ = gated.with_gates(case, "sigmoid", mx.float32, shift=shift, turn=turn)
    arrays = [mx.array(x.astype(np.float32)) for x in (case.q, case.k, case.v, *gates)]
    h0 = to_planes(case.h0)
    if case.max_headed:
        arrays, h0 = [x[..., 0] for x in arrays], h0[..., 0, 0]
    a = Transition.sigmoid(*arrays[3:])
    y, h = gpu.gate_loop(kernels_of(platform), *arrays[:3], a, h0, None, False)
    want_y, want_h, _ = forward(case)
    assert error(y, want_y) <= 2e-5
    assert error(h, as_numpy(to_planes(want_h))) <= 2e-5


@on_metal
@max_headed_and_heads
@pytest.mark.parametrize("reverse", [False, True])
def test_masked_steps_read_nothing_and_give_exact_zeros(platform, keys, values, reverse):
    sizes = (keys, keys, values, keys, keys)
    arrays = [normal(1, 40, *size, key=i) for i, size in enumerate(sizes)]
    live = mx.arange(40)[None] % 3 != 1
    spoilt = [mx.where(rows(live, x), x, mx.nan) for x in arrays]

    def loss(*xs):
        a = Transition.sigmoid(*xs[3:])
        y, h = gpu.gate_loop(kernels_of(platform), *xs[:3], a, None, live, reverse)
        return y.square().sum() + h.square().sum(), y

    everything = tuple(range(5))
    (_, y), clean = mx.value_and_grad(loss, everything)(*arrays)
    (_, same), found = mx.value_and_grad(loss, everything)(*spoilt)
    for want, got in zip((y, *clean), (same, *found), strict=True):
        assert mx.array_equal(want, got)
        assert not got[:, 1::3].any()


@on_metal
@pytest.mark.parametrize("size", [(3,), (1, 3)], ids=["max-headed", "heads"])
def test_masked_steps_are_zero_beside_states_and_gradients_that_overflow(platform, size):
    live = mx.arange(150)[None] % 3 != 1
    ones, growth = mx.ones((1, 150, *size)), mx.full((1, 150, *size), 4.0)

    def run(*xs):
        a = Transition("cartesian", xs[3])
        return gpu.gate_loop(kernels_of(platform), *xs[:3], a, None, live, False)

    state = mx.zeros((1, 1, *size, *size[1:]))
    (y, h), found = mx.vjp(run, [ones, ones, ones, growth], [ones, state])
    assert mx.isinf(h).all()
    assert not mx.isfinite(found[1][:, 0]).any()
    for x in (y, *found):
        assert not x[:, 1::3].any()
