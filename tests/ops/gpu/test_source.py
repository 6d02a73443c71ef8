"""The harness runs the text that MLX composes, byte for byte."""

import mlx.core as mx
import pytest
from harness import Call, metal_kernel
from harness.mlx_text import mlx_text
from harness.variants import HEADS, SMALL, VARIANTS, composing, launch, launch_heads

SOURCE = """
    uint elem = thread_position_in_grid.x;  // not threads_per_grid
    out[elem] = a[elem] + b[0] * c[elem % c_shape[0]] + a_strides[0] + a_ndim;
"""


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("template", [[], [("T", mx.float16), ("N", -3), ("F", True)]])
def test_a_kernel_with_everything(template, atomic):
    kernel = {"name": "all", "input_names": ["a", "b", "c"], "output_names": ["out", "also"]}
    kernel |= {"source": SOURCE, "header": "// a header\n", "atomic_outputs": atomic}
    inputs = [mx.zeros((4, 3)), mx.array(1.0), mx.zeros((7,), mx.bfloat16)]
    dtypes = [mx.float16, mx.uint8]
    call = {"grid": (12, 1, 1), "threadgroup": (4, 1, 1), "output_shapes": [(12,), (12,)]}
    call |= {"output_dtypes": dtypes, "template": template}
    ours = metal_kernel(**kernel).composed(Call(inputs, dtypes, template))
    assert ours == mlx_text(kernel, inputs, **call)


def assert_same_texts(run, count):
    """Check that MLX composes the same text of the `count` kernels that `run` calls."""
    texts = {}

    def factory(**kernel):
        ours = metal_kernel(**kernel)

        def traced(*, inputs, **call):
            types = Call(inputs, call["output_dtypes"], call["template"])
            key = kernel["name"], tuple(call["template"])
            texts[key] = ours.composed(types), mlx_text(kernel, inputs, **call)

        return composing(traced)

    run(factory)
    assert len(texts) == count
    for ours, theirs in texts.values():
        assert ours == theirs


@pytest.mark.parametrize("shape", [(2, 100, 40), SMALL])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels(variant, shape):
    assert_same_texts(lambda factory: launch("metal", factory, variant, shape), 3)


@pytest.mark.parametrize("variant", HEADS)
def test_the_kernels_of_heads(variant):
    assert_same_texts(lambda factory: launch_heads("metal", factory, variant), 5)
