import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error, inputs, random_case

import mlx_gateloop as gl


def softmax_reference(case):
    a, y = np.broadcast_to(case.a, case.q.shape), np.zeros(case.v.shape)
    for n in range(y.shape[1]):
        # a_{m+1} ... a_n for m = n, n - 1 and on to 0, turned
        after = np.cumprod(np.concatenate([np.ones_like(a[:, :1]), a[:, n:0:-1]], 1), 1)[:, ::-1]
        scores = (case.q[:, n, None] * case.k[:, : n + 1] * after.real).sum(-1)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        y[:, n] = np.einsum("bmh,bmhv->bhv", weights, case.v[:, : n + 1])
    return y


def test_magnitudes_above_one_are_not_clamped():
    case = random_case(2, 10, resets=0)
    case.a[:] = 1.5
    y, _ = gl.gate_loop(*inputs(case), mode="attention")
    same, _ = gl.gate_loop(*inputs(case), mode="recurrent")
    assert error(y, np.array(same)) < 2e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
@pytest.mark.parametrize("heads", [(3, 1, 1), (2, 3, 4)])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("one_gate_per_head", [False, True])
def test_softmax_form(one_gate_per_head, is_complex, heads, dtype):
    options = {"is_complex": is_complex, "one_gate_per_head": one_gate_per_head, "dtype": dtype}
    case = random_case(3, 33, heads=heads, **options)
    y = gl.ops.gate_loop_softmax(*inputs(case, dtype)[:4])
    assert y.dtype == dtype
    assert error(y, softmax_reference(case)) < (2e-6 if dtype == mx.float32 else 2**-11)
