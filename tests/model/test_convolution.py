"""The short convolution: an output depends on its window alone."""

import mlx.core as mx
import pytest

from mlx_gateloop.model.convolution import ShortConvolution


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_token_alone_gets_what_it_gets_in_a_text(dtype):
    convolution = ShortConvolution(8, 4)
    convolution.set_dtype(dtype)
    x = mx.random.normal((2, 12, 8)).astype(dtype)
    alone = mx.concatenate([convolution(x[:, n : n + 4]) for n in range(9)], axis=1)
    assert mx.allclose(alone, convolution(x), atol=1e-6)
