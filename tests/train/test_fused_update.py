import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from mlx_gateloop.train.fused_update import SMALL, Optimizer

SHAPES = st.one_of(
    st.sampled_from([(SMALL - 1,), (SMALL,), (128, SMALL // 128), (2, SMALL)]),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
)


@given(st.lists(SHAPES, min_size=1, max_size=6))
def test_splitting_undoes_joining(shapes):
    """Vectors and scalars are of one group, which is joined, and the others of one that is not."""
    arrays = {str(n): mx.random.normal(shape) for n, shape in enumerate(shapes)}
    optimizer = Optimizer([None] * 2, [], lambda _, x: int(x.ndim > 1), [True, False])
    joined = optimizer.join(arrays)
    small = sum(array.ndim < 2 and array.size < SMALL for array in arrays.values())
    assert sum(map(len, joined)) == len(arrays) - small + (small > 0)
    restored = dict(tree_flatten(optimizer.split(joined, arrays)))
    assert restored.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.array(restored[name]), np.array(array))
