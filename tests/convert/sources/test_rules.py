"""The transforms of the key tables: what they do, and that they are undone without a lost bit."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import problem
from mlx_gateloop.convert.sources import SOURCES, detect
from mlx_gateloop.convert.sources.base import depth
from mlx_gateloop.convert.sources.rules import IDENTITY, INTERLEAVE, TRANSPOSE, negate, split

ROWS = mx.arange(12.0).reshape(6, 2)
EXPECTED = {
    "identity": (IDENTITY, [ROWS.tolist()]),
    "transpose": (TRANSPOSE, [ROWS.T.tolist()]),
    "interleave": (INTERLEAVE, [ROWS[0::2].tolist(), ROWS[1::2].tolist()]),
    "split": (split(3), [ROWS[0:2].tolist(), ROWS[2:4].tolist(), ROWS[4:6].tolist()]),
    "split and negate": (split(2).then(negate(1)), [ROWS[:3].tolist(), (-ROWS[3:]).tolist()]),
    "transpose and split": (
        TRANSPOSE.then(split(2)),
        [[ROWS[:, 0].tolist()], [ROWS[:, 1].tolist()]],
    ),
}


@pytest.mark.parametrize(("transform", "expected"), EXPECTED.values(), ids=EXPECTED.keys())
def test_transforms(transform, expected):
    arrays = transform.forward([ROWS])
    assert [array.tolist() for array in arrays] == expected
    (back,) = transform.backward(arrays)
    assert mx.array_equal(back, ROWS)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("transform", [t for t, _ in EXPECTED.values()], ids=EXPECTED.keys())
def test_every_bit_comes_back(transform, dtype):
    integer = mx.uint32 if dtype == mx.float32 else mx.uint16
    largest = 2 ** (8 * integer.size)
    bits = np.random.default_rng(0).integers(0, largest, (6, 4))  # NaN, infinity, -0 among them
    bits[0] = [0, 1, largest // 2, largest - 1]
    array = mx.array(bits.astype(np.uint32)).astype(integer).view(dtype)
    (back,) = transform.backward(transform.forward([array]))
    assert back.dtype == dtype
    assert mx.array_equal(mx.contiguous(back).view(integer), array.view(integer))


@pytest.mark.parametrize("transform", [INTERLEAVE, split(2), TRANSPOSE])
def test_shapes_that_cannot_be_are_value_errors(transform):
    with pytest.raises(ValueError):
        transform.forward([mx.zeros((3,))])


def test_depth_counts_the_layers():
    names = [f"a.{i}.w" for i in range(11)] + ["a.x.w", "a.11.v", "b.20.w", "a.1.b.w"]
    assert depth(dict.fromkeys(names, ()), "a.{}.w") == 11
    assert depth({}, "a.{}.w") == 0
    assert depth(dict.fromkeys(["a.0.w", f"a.{'9' * 5000}.w"], ()), "a.{}.w") == 1


def test_a_number_of_layers_that_a_name_claims_is_not_believed():
    names = dict.fromkeys(["a.0.w", "a.99999999.w"], ())
    assert problem(lambda: depth(names, "a.{}.w")).startswith("weights: missing a.1.w")


def test_sources_are_known_by_their_kind():
    assert list(SOURCES) == ["lucidrains", "lucidrains-simple", "paper", "flax"]
    assert detect({}, "paper") is SOURCES["paper"]
    message = problem(lambda: detect({"wte.weight": (3, 4)}))
    assert message.startswith("weights: names of no known source (lucidrains, ")
    assert "wte.weight" in message
