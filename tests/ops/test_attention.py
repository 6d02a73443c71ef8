import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error, random_case

import mlx_gateloop as gl
from mlx_gateloop.ops.attention import decay


def products(a: np.ndarray) -> np.ndarray:
    """D[n, m] = a_{m+1} ... a_n by multiplication, `[B, n, m, H, K]`."""
    B, L, *rest = a.shape
    D = np.zeros((B, L, L, *rest), a.dtype)
    for m in range(L):
        D[:, m, m] = 1
        for n in range(m + 1, L):
            D[:, n, m] = a[:, n] * D[:, n - 1, m]
    return D


def softmax_reference(case) -> np.ndarray:
    D = products(np.broadcast_to(case.a, case.q.shape))
    scores = np.einsum("bnhk,bmhk,bnmhk->bnmh", case.q, case.k, D).real
    L = scores.shape[1]
    scores = np.where(np.tri(L, dtype=bool)[:, :, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return np.einsum("bnmh,bmhv->bnhv", weights / weights.sum(2, keepdims=True), case.v)


def inputs(case, dtype=mx.float32):
    kind = np.complex64 if np.iscomplexobj(case.a) else np.float32
    arrays = [mx.array(x.astype(np.float32)).astype(dtype) for x in (case.q, case.k, case.v)]
    arrays.append(mx.array(case.a.astype(kind)))
    return [x[..., 0] for x in arrays] if case.max_headed else arrays


@pytest.mark.parametrize("is_complex", [False, True])
def test_decay_is_the_product_of_transitions(is_complex):
    case = random_case(1, 40, is_complex=is_complex)
    planes = [case.a.real, case.a.imag] if is_complex else [case.a]
    got = decay(tuple(mx.array(p.astype(np.float32)) for p in planes))
    want = products(case.a)
    for plane, part in zip(got, (want.real, want.imag), strict=False):
        assert error(plane, part) < 1e-6


def test_magnitudes_above_one_are_not_clamped():
    case = random_case(2, 10, resets=0)
    case.a[:] = 1.5
    y, _ = gl.gate_loop(*inputs(case), mode="attention")
    same, _ = gl.gate_loop(*inputs(case), mode="recurrent")
    assert error(y, np.array(same)) < 2e-6


@pytest.mark.parametrize("heads", [(3, 1, 1), (2, 3, 4)])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("one_gate_per_head", [False, True])
def test_softmax_form(one_gate_per_head, is_complex, heads):
    case = random_case(
        3, 33, heads=heads, is_complex=is_complex, one_gate_per_head=one_gate_per_head
    )
    assert error(gl.ops.gate_loop_softmax(*inputs(case)), softmax_reference(case)) < 2e-6


def test_softmax_form_keeps_the_dtype_of_the_values():
    case = random_case(4, 9, dtype=mx.float16)
    y = gl.ops.gate_loop_softmax(*inputs(case, mx.float16))
    assert y.dtype == mx.float16
    assert error(y, softmax_reference(case)) < 2**-11


def test_softmax_without_transitions_is_plain_attention():
    q, k, v = (mx.random.normal((1, 12, 2, 4), key=mx.random.key(i)) for i in range(3))
    y = gl.ops.gate_loop_softmax(q, k, v, mx.ones((1, 12, 2, 1)))
    heads_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    plain = mx.fast.scaled_dot_product_attention(*heads_first, scale=1.0, mask="causal")
    assert error(y, np.array(plain.swapaxes(1, 2))) < 2e-6


def test_softmax_gradient_is_right_at_resets():
    case = random_case(5, 12, heads=(1, 2, 2), resets=0.3)
    q, k, v, a = inputs(case)
    re, im = mx.real(a), mx.imag(a)

    def loss(re, im):
        return (gl.ops.gate_loop_softmax(q, k, v, re + 1j * im) ** 2).sum()

    gradient = mx.grad(loss)(re, im)
    at_reset = np.argwhere(np.array(re) == 0)
    assert len(at_reset) > 3
    for index in at_reset:
        step = np.zeros(re.shape, np.float32)
        step[tuple(index)] = 1e-2
        sides = [loss(re + sign * mx.array(step), im).item() for sign in (1, -1)]
        slope = (sides[0] - sides[1]) / 2e-2
        assert gradient[tuple(index.tolist())].item() == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("is_complex", [False, True])
def test_derivatives_of_the_decay_forwards_and_backwards_agree_at_resets(is_complex):
    case = random_case(6, 20, resets=0.3, is_complex=is_complex)
    parts = [case.a.real, case.a.imag][: 1 + is_complex]
    a = [mx.array(p.astype(np.float32)) for p in parts]
    keys = mx.random.split(mx.random.key(1), 4)
    directions = [mx.random.normal(p.shape, key=key) for p, key in zip(a, keys, strict=False)]

    def function(*a):
        return list(decay(a))

    D, moved = mx.jvp(function, a, directions)
    weights = [mx.random.normal(p.shape, key=key) for p, key in zip(D, keys[2:], strict=False)]
    _, pulled = mx.vjp(function, a, weights)
    along = sum((p * d).sum().item() for p, d in zip(pulled, directions, strict=True))
    other = sum((m * w).sum().item() for m, w in zip(moved, weights, strict=True))
    assert other == pytest.approx(along, rel=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2)])
def test_empty(shape):
    x = mx.zeros(shape)
    assert gl.ops.gate_loop_softmax(x, x, x, x).shape == shape
