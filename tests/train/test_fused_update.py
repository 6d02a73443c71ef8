import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.train.fused_update import SMALL, join, split

SHAPES = st.one_of(
    st.sampled_from([(SMALL - 1,), (SMALL,), (128, SMALL // 128), (2, SMALL)]),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
)


@given(st.lists(SHAPES, max_size=6))
def test_splitting_undoes_joining(shapes):
    arrays = {f"{i}.weight": mx.random.normal(shape) for i, shape in enumerate(shapes)}
    joined = join(arrays)
    small = sum(array.size < SMALL for array in arrays.values())
    assert len(joined) == len(arrays) - small + (small > 0)
    restored = split(joined, arrays)
    assert list(restored) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.array(restored[name]), np.array(array))
