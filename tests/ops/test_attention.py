import mlx.core as mx
import pytest
from helpers.reference import error, inputs, random_case, softmax_attention

import mlx_gateloop as gl


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
@pytest.mark.parametrize("heads", [(3, 1, 1), (2, 3, 4), (2, 0, 4)])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("one_gate_per_head", [False, True])
def test_softmax_form(one_gate_per_head, is_complex, heads, dtype):
    options = {"is_complex": is_complex, "one_gate_per_head": one_gate_per_head, "dtype": dtype}
    case = random_case(3, 33, heads=heads, **options)
    y = gl.ops.gate_loop_softmax(*inputs(case, dtype)[:4])
    assert y.dtype == dtype
    arrays = (x.swapaxes(1, 2) for x in (case.q, case.k, case.v, case.a))
    want = softmax_attention(*arrays).swapaxes(1, 2)
    assert error(y, want) < (2e-6 if dtype == mx.float32 else 2**-11)
