"""The bytes that the kernels read and write, as the harness counts them."""

import itertools
import math

import mlx.core as mx
import pytest
from harness import recorded
from harness.platforms import OBSERVED

from mlx_gateloop.ops.gpu.kernels import Variant
from mlx_gateloop.ops.gpu.launch_config import Plan

SHAPE = (1, 128, 32)
# What a variant must move for an element, in arrays of its type: forward and backward.
CASES = {
    "operator": (Variant(0, True), 6, 11),  # q k v gamma theta | y; those, dy | five gradients
    "real operator": (Variant(0, False), 5, 9),
    "scan": (Variant(2, True, 2), 6, 10),  # x and a | h; those, dh | four gradients
}


def moved(launch):
    return sum(launch.read.values()) + sum(launch.written.values())


# Each dtype, mask and size of a tile comes in the short suite, every combination in the long one.
SHORT = [(mx.float32, False, 16), (mx.float16, True, 16), (mx.bfloat16, True, 8)]
EVERY = itertools.product((mx.float32, mx.float16, mx.bfloat16), (False, True), (8, 16))
SETTINGS = [pytest.param(*each, marks=() if each in SHORT else pytest.mark.slow) for each in EVERY]


@pytest.mark.parametrize("platform", ["metal", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dtype", "masked", "segments"), SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_array_is_moved_once(platform, dtype, masked, segments, case):
    variant, *arrays = CASES[case]
    variant = Variant(variant.form, variant.is_complex, variant.planes_x, masked)
    kernels, plan, elements = OBSERVED[platform], Plan(segments), math.prod(SHAPE)
    steps, state = mx.ones(SHAPE, dtype), mx.zeros((SHAPE[0], variant.planes, SHAPE[2]))
    x = dict.fromkeys(("q", "k", "v", "first", "second", "dy", "dz"), steps)
    x |= {"mask": mx.ones(SHAPE[:2], mx.bool_), "h0": state, "dh1": state}
    with recorded() as launches:
        states = kernels.forward(variant, plan, x)["states"]
        mx.eval(kernels.backward(variant, plan, x | {"states": states}))
    assert len(launches) == 2
    for launch, count, rows in zip(launches, arrays, (2, 4), strict=True):
        each = moved(launch) / elements
        print(f"\n{launch.name}, {case}, {dtype}: {each:.2f} bytes for an element")
        least = count * dtype.size
        # a plane of a state is saved every 32 steps; each channel's thread reads the mask
        assert least <= each <= least + variant.planes / 4 + masked
        assert launch.shared_bytes == 2 * rows * variant.planes * segments * 32 * 4


def test_a_sequence_in_parts_reads_the_gates_and_the_source_twice():
    kernels, (variant, _, count) = OBSERVED["metal"], CASES["operator"]
    shape, parts = (1, 512, 32), 2
    steps, state = mx.ones(shape), mx.zeros((1, 2, shape[2]))
    x = dict.fromkeys(("q", "k", "v", "first", "second", "dy"), steps) | {"dh1": state}
    x["states"] = mx.zeros((1, shape[1] // 32, 2, shape[2]))
    with recorded() as launches:
        x |= kernels.aggregate(variant, Plan(16, parts), x, adjoint=True)
        mx.eval(kernels.backward(variant, Plan(16, parts), x))
    each = sum(map(moved, launches)) / math.prod(shape)
    assert (count + 4) * 4 <= each <= (count + 4) * 4 + 2
