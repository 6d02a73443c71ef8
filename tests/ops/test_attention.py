import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error, inputs, random_case

import mlx_gateloop as gl


def products(a):
    """D[n, m] = a_{m+1} ... a_n by multiplication, `[B, n, m, H, K]`."""
    B, L, *rest = a.shape
    D = np.zeros((B, L, L, *rest), a.dtype)
    for m in range(L):
        D[:, m, m] = 1
        for n in range(m + 1, L):
            D[:, n, m] = a[:, n] * D[:, n - 1, m]
    return D


def softmax_reference(case):
    D = products(np.broadcast_to(case.a, case.q.shape))
    scores = np.einsum("bnhk,bmhk,bnmhk->bnmh", case.q, case.k, D).real
    L = scores.shape[1]
    scores = np.where(np.tri(L, dtype=bool)[:, :, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return np.einsum("bnmh,bmhv->bnhv", weights / weights.sum(2, keepdims=True), case.v)


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
