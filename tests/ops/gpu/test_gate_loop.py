"""Tiles and parts of the GPU kernels; ../test_gate_loop.py has the rest."""

from functools import partial

import pytest
from harness.platforms import CUDA_TEXT, PLATFORMS, kernels_of
from helpers import gated
from helpers.cases import first
from helpers.reference import random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.ops.gpu import heads as gpu_heads
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.heads_kernels import HeadsPlan
from mlx_gateloop.ops.gpu.launch_config import CORES, plan

on_each_platform = pytest.mark.parametrize("platform", PLATFORMS)


def check(platform, case, form="sigmoid", **options):
    gated.check(partial(gpu.gate_loop, kernels_of(platform)), case, form, **options)


# With heads, the first has several tiles of keys and of values, also of the gradient, the second
# several values of a lane, the third two simdgroups with the same keys of a real state.
@on_each_platform
@pytest.mark.parametrize(("batch", "length", "heads", "is_complex"), first(9, [
    *((1, 1, (1, 1, 1), True), (1, 3, (2, 1, 1), True), (2, 1, (33, 1, 1), True)),
    *((2, 64, (32, 1, 1), True), (3, 65, (64, 1, 1), True)),
    (1, 9, (1, 140, 70), True), (16, 3, (2, 5, 40), True), (1, 18, (2, 1, 40), False),
    (264, 70, (1, 1, 1), True),  # many threadgroups
    (1, 33, (3, 33, 1), True),
]))  # fmt: skip
def test_sizes_at_the_edges_of_tiles(platform, batch, length, heads, is_complex):
    case = random_case(6, length, batch=batch, heads=heads, is_complex=is_complex)
    check(platform, case, cancels=heads[2] > 1)


@on_each_platform
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**16),
    length=st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65]),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    keys=st.sampled_from([1, 3, 8, 31, 32]),
    values=st.sampled_from([1, 5, 16, 17]),
    closed=st.sampled_from([0.0, 0.2]),
)
def test_any_sizes(platform, seed, length, batch, heads, keys, values, closed):
    keys = max(keys, 2 if values == 1 else 1)  # else it is max-headed
    case = random_case(seed, length, batch=batch, heads=(heads, keys, values))
    check(platform, case, cancels=True, closed=closed, seed=seed)


def test_the_sizes_have_the_tiles_that_they_should():
    heads = partial(gpu_heads.plan, CORES["metal"])
    assert heads("outputs", (1, 9, 1, 140, 70), True).tiles("outputs", 140, 70) == (2, 3)
    assert heads("backward", (1, 9, 1, 140, 70), True).tiles("backward", 140, 70) == (5, 2)
    assert heads("outputs", (16, 3, 2, 5, 40), True).values == 2
    assert heads("backward", (1, 18, 2, 1, 40), False) == HeadsPlan(8, 8)
    assert heads("backward", (1, 770, 1, 3, 2), True).parts == 3
    many, few = (plan(CORES["metal"], groups, 70, 1) for groups in (264, 1))
    assert many.segments < few.segments
    parts = plan(CORES["metal"], 1, 3001, 5).parts
    assert parts > 1
    assert 3001 % parts


@pytest.mark.parametrize("platform", [*PLATFORMS, CUDA_TEXT])
@pytest.mark.parametrize(("length", "heads", "options"), first(3, [
    (3001, (5, 1, 1), {"masked": 0.3, "reverse": True}),
    (770, (1, 3, 2), {"masked": 0.3, "reverse": True}),
    (3001, (5, 1, 1), {"is_complex": False}), (770, (1, 3, 2), {}),
]))  # fmt: skip
def test_a_long_sequence_in_parts(platform, length, heads, options):
    case = random_case(7, length, batch=1, heads=heads, **options)
    # A memory of 400 steps sums more roundings: over ten seeds up to 1.1e-6.
    check(platform, case, shift=6, rounding=2e-6 if length > 1000 else 1e-6)
