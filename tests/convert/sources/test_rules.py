"""The transforms of the key tables: what they do, and that they are undone without a lost bit."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_gateloop.convert.sources.rules import IDENTITY, INTERLEAVE, TRANSPOSE, negate, split

ROWS = mx.arange(12.0).reshape(6, 2)
EXPECTED = {
    "identity": (IDENTITY, [ROWS]),
    "transpose": (TRANSPOSE, [ROWS.T]),
    "interleave": (INTERLEAVE, [ROWS[0::2], ROWS[1::2]]),
    "split": (split(3), [ROWS[0:2], ROWS[2:4], ROWS[4:6]]),
    "split and negate": (split(2).then(negate(1)), [ROWS[:3], -ROWS[3:]]),
    "transpose and split": (TRANSPOSE.then(split(2)), [ROWS.T[:1], ROWS.T[1:]]),
}


@pytest.mark.parametrize(("transform", "expected"), EXPECTED.values(), ids=EXPECTED)
def test_transforms_and_back(transform, expected):
    arrays = transform.forward([ROWS])
    assert [array.tolist() for array in arrays] == [array.tolist() for array in expected]
    for dtype, integer in ((mx.float32, mx.uint32), (mx.bfloat16, mx.uint16)):
        largest = 2 ** (8 * integer.size)
        bits = np.random.default_rng(0).integers(0, largest, (6, 4))  # NaN, infinity and -0 too
        bits[0] = [0, 1, largest // 2, largest - 1]
        array = mx.array(bits.astype(np.uint32)).astype(integer).view(dtype)
        (back,) = transform.backward(transform.forward([array]))
        assert back.dtype == dtype
        assert mx.array_equal(mx.contiguous(back).view(integer), array.view(integer))
