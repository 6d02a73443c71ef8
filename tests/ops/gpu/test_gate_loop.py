"""The fused operator of the GPU kernels beside the float64 loops of `reference`."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from harness.platforms import PLATFORMS, kernels_of
from helpers import gated
from helpers.reference import as_numpy, error, forward, random_case, to_planes

from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, plan
from mlx_gateloop.ops.transition import Transition

pytestmark = pytest.mark.parametrize("platform", PLATFORMS)


def check(platform, *arguments, **options):
    return gated.check(partial(gpu.gate_loop, kernels_of(platform)), *arguments, **options)


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


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("gate_dtype", [mx.float32, None])
def test_half_types(platform, dtype, gate_dtype):
    case = random_case(5, 70, heads=(5, 1, 1), dtype=dtype)
    check(platform, case, "sigmoid", dtype, gate_dtype or dtype)


@pytest.mark.parametrize(
    ("batch", "length", "width"), [(1, 1, 1), (1, 3, 2), (2, 1, 33), (2, 64, 32), (3, 65, 64)]
)
def test_shapes_at_the_edges_of_tiles(platform, batch, length, width):
    check(platform, random_case(6, length, batch=batch, heads=(width, 1, 1)), "sigmoid")


@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize(("masked", "reverse"), [(0.0, False), (0.3, True)])
def test_a_long_sequence_in_parts(platform, is_complex, masked, reverse):
    length = 3001
    parts = plan(DEFAULTS[platform[0]], "forward 32", 1, length, 5).parts
    assert parts > 1
    assert length % parts
    options = {"masked": masked, "reverse": reverse, "is_complex": is_complex}
    case = random_case(7, length, batch=1, heads=(5, 1, 1), **options)
    # A memory of 400 steps sums more roundings: over ten seeds up to 1.1e-6.
    check(platform, case, "sigmoid", shift=6, rounding=2e-6)


def test_a_large_batch(platform):
    batch = 264
    tuning = DEFAULTS[platform[0]]
    many, few = (plan(tuning, "forward 32", groups, 70, 1) for groups in (batch, 1))
    assert many.segments < few.segments
    check(platform, random_case(8, 70, batch=batch, heads=(1, 1, 1)), "sigmoid")


def test_resets_are_exact(platform):
    case = random_case(9, 70, resets=0.3)
    assert (case.a == 0).any()
    check(platform, case, "cartesian")
    q, k, v, phase = (mx.random.normal((1, 70, 3), key=mx.random.key(i)) for i in range(4))
    log = mx.where(mx.arange(70)[None, :, None] == 40, -mx.inf, mx.zeros((1, 70, 3)))

    def run(start):
        arrays = [x[:, start:] for x in (q, k, v)]
        a = Transition.polar(log[:, start:], phase[:, start:])
        return gpu.gate_loop(kernels_of(platform), *arrays, a, None, None, False)

    for whole, rest in zip(run(0), run(40), strict=True):  # nothing before step 40 is left
        assert error(whole[:, -rest.shape[1] :], as_numpy(rest)) <= 1e-6


@pytest.mark.parametrize(("shift", "turn"), [(8, 0.001), (8, 1), (20, 0)])
def test_a_memory_of_thousands_of_steps(platform, shift, turn):
    case = random_case(10, 4096, batch=1, heads=(4, 1, 1), resets=0)
    case, gates, _ = gated.with_gates(case, "sigmoid", mx.float32, shift=shift, turn=turn)
    q, k, v, gamma, theta = (
        mx.array(x[..., 0].astype(np.float32)) for x in (case.q, case.k, case.v, *gates)
    )
    a, h0 = Transition.sigmoid(gamma, theta), to_planes(case.h0)[..., 0, 0]
    y, h = gpu.gate_loop(kernels_of(platform), q, k, v, a, h0, None, False)
    want_y, want_h, _ = forward(case)
    assert error(y, want_y) <= 2e-5
    assert error(h, as_numpy(to_planes(want_h))) <= 2e-5


def test_masked_steps_read_nothing_and_give_exact_zeros(platform):
    shape = (1, 40, 3)
    arrays = [mx.random.normal(shape, key=mx.random.key(i)) for i in range(5)]
    live = mx.arange(40)[None] % 3 != 1
    spoilt = [mx.where(live[..., None], x, mx.nan) for x in arrays]

    def loss(*xs):
        a = Transition.sigmoid(*xs[3:])
        y, h = gpu.gate_loop(kernels_of(platform), *xs[:3], a, None, live, False)
        return y.square().sum() + h.square().sum()

    everything = tuple(range(5))
    for clean, got in zip(
        mx.grad(loss, everything)(*arrays), mx.grad(loss, everything)(*spoilt), strict=True
    ):
        assert mx.array_equal(clean, got)
        assert not got[:, 1::3].any()


def test_masked_steps_are_zero_beside_states_and_gradients_that_overflow(platform):
    shape = (1, 150, 3)
    live = mx.arange(150)[None] % 3 != 1
    ones, growth = mx.ones(shape), mx.full(shape, 4.0)

    def run(*xs):
        a = Transition("cartesian", *xs[3:])
        return gpu.gate_loop(kernels_of(platform), *xs[:3], a, None, live, False)

    (y, h), found = mx.vjp(run, [ones, ones, ones, growth], [ones, mx.zeros((1, 1, 3))])
    assert mx.isinf(h).all()
    assert not mx.isfinite(found[1][:, 0]).any()
    for x in (y, *found):
        assert not x[:, 1::3].any()
