"""The bytes that the kernels read and write, as the harness counts them."""

import itertools
import math
from dataclasses import replace

import mlx.core as mx
import pytest
from harness import recorded, variants
from harness.platforms import OBSERVED
from helpers.cases import first

from mlx_gateloop.ops.gpu.heads_kernels import HeadsPlan, launch
from mlx_gateloop.ops.gpu.kernels import Variant
from mlx_gateloop.ops.gpu.launch_config import Plan

SHAPE = (1, 128, 32)
# What a variant must move for an element, in arrays of its type: forward and backward.
CASES = {
    "operator": (Variant(0, True), 6, 11),  # q k v gamma theta | y; those, dy | five gradients
    "real operator": (Variant(0, False), 5, 9),
    "scan": (Variant(2, True, 2), 6, 10),  # x and a | h; those, dh | four gradients
}
# Each dtype, mask and size of a tile comes in the short suite, every combination in the long one.
SHORT = [(mx.float32, False, 16), (mx.float16, True, 16), (mx.bfloat16, True, 8)]
EVERY = itertools.product((mx.float32, mx.float16, mx.bfloat16), (False, True), (8, 16))
SETTINGS = [pytest.param(*each, marks=() if each in SHORT else pytest.mark.slow) for each in EVERY]


def moved(launch):
    return sum(launch.read.values()) + sum(launch.written.values())


@pytest.mark.parametrize("platform", first(1, ["metal", "cuda"]))
@pytest.mark.parametrize(("dtype", "masked", "segments"), SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_array_is_moved_once(platform, dtype, masked, segments, case):
    variant, *arrays = CASES[case]
    variant = replace(variant, masked=masked)
    with recorded() as launches:
        variants.launch(OBSERVED[platform], (variant, dtype, dtype), SHAPE, Plan(segments))
    for launched, count, rows in zip(launches[1:], arrays, (2, 4), strict=True):
        each = moved(launched) / math.prod(SHAPE)
        least = count * dtype.size
        # a plane of a state is saved every 32 steps; each channel's thread reads the mask
        assert least <= each <= least + variant.planes / 4 + masked
        assert launched.shared_bytes == 2 * rows * variant.planes * segments * 32 * 4


def test_a_sequence_in_parts_reads_the_gates_and_the_source_twice():
    (variant, _, count), shape = CASES["operator"], (1, 512, 32)
    with recorded() as launches:
        variants.launch(OBSERVED["metal"], (variant, mx.float32, mx.float32), shape, Plan(16, 2))
    effects, _, backward = map(moved, launches)
    assert (count + 4) * 4 <= (effects + backward) / math.prod(shape) <= (count + 4) * 4 + 2


def heads_arrays(variant, B, L, H, K, V):
    x = dict.fromkeys(("q", "k", "first", "second"), mx.ones((B, L, H, K)))
    x |= dict.fromkeys(("v", "dy"), mx.ones((B, L, H, V)))
    return x | dict.fromkeys(("h0", "dh1"), mx.ones((B, variant.planes, H, K, V)))


def test_with_heads_every_array_is_moved_once():
    variant, kernels = Variant(0, True), OBSERVED["metal"]
    x = heads_arrays(variant, 1, 64, 1, 64, 32)
    keys, values, state = 4 * 64 * 64, 4 * 64 * 32, 2 * 4 * 64 * 32
    with recorded() as launches:
        mx.eval(launch(kernels, "outputs", variant, HeadsPlan(8), x))
        x |= launch(kernels, "states", variant, HeadsPlan(8), x)
        mx.eval(launch(kernels, "backward", variant, HeadsPlan(8, 4), x))
    outputs, states, backward = (sum(each.read.values()) for each in launches)
    written = [sum(each.written.values()) for each in launches]
    assert outputs == 4 * keys + values + state  # q, k and gates; v; h0
    assert states == 3 * keys + values + state
    # A block of 16 steps reads the state before its 32, and where it is their second half, also
    # what the first half is advanced with; two tiles of keys read values.
    assert backward == 4 * keys + 3 * keys / 2 + 2 * (2 * values + values / 2) + 4 * state + state
    assert written == [values + state, 2 * state, 4 * keys + 2 * values + state]


def test_sixteen_segments_read_the_values_of_their_four_steps():
    variant = Variant(0, False)
    x = heads_arrays(variant, 1, 16, 1, 128, 32)
    with recorded() as launches:
        mx.eval(launch(OBSERVED["metal"], "outputs", variant, HeadsPlan(16), x))
    assert launches[0].read["v"] == x["v"].nbytes
