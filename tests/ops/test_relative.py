"""Softmax attention with relative positions, of MLX's operations and of the C++ extension."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import as_numpy, error, needs_native, normal, softmax_attention

from mlx_gateloop.ops.cpu import extension
from mlx_gateloop.ops.relative import composed, relative_attention

SIZE = 3
FORMS = [(0, 1), (1, 1), (1, SIZE), (2, 1), (2, SIZE)]  # planes of a transition, and their number
native = pytest.param(relative_attention, marks=needs_native)
both = pytest.mark.parametrize("attend", [composed, native])


def case(parts, width, *, length=37, last=None, batch=2, heads=2, phases=3.0, resets=()):
    rng = np.random.default_rng(length + 10 * parts + width)
    shape = (batch, heads, length)
    q, k, v = (rng.normal(size=(*shape, n)) for n in (SIZE, SIZE, 5))
    decay = -rng.exponential(0.1, (*shape, width))
    phase = rng.uniform(-phases, phases, decay.shape)
    decay[:, :, list(resets)] = -300
    keys = np.concatenate([k, *[decay, phase][:parts]], axis=-1)
    return [mx.array(x.astype(np.float32)) for x in (q[:, :, length - (last or length) :], keys, v)]


def permitted(length, last, heads=1):
    """A causal mask that hides two tokens in five, and all of them from the first query."""
    mask = np.random.default_rng(7).random((2, heads, last, length)) < 0.6
    mask &= np.tri(last, length, length - last, dtype=bool)
    mask[:, :, 0] = False
    return mx.array(mask)


def exact(q, keys, v, parts, mask=None):
    q, keys, v = (np.array(x).astype(np.float64) for x in (q, keys, v))
    logs = np.split(keys[..., SIZE:], parts, -1) if parts else [np.zeros((*keys.shape[:3], 1))]
    a = np.exp(logs[0] + (1j * logs[1] if parts == 2 else 0))
    return softmax_attention(q, keys[..., :SIZE], v, a, mask if mask is None else np.array(mask))


def gradients(attend, arrays, parts, mask=None, skip=0):
    """Those of q, keys and v of the outputs, each with a weight, after the first `skip`."""

    def loss(*arrays):
        y = attend(*arrays, parts, mask)
        return (y * normal(*y.shape, key=5))[:, :, skip:].sum()

    return mx.grad(loss, argnums=(0, 1, 2))(*arrays)


@pytest.mark.parametrize(("parts", "width"), FORMS)
@pytest.mark.parametrize(("masked", "last"), [(0, 37), (1, 20), (2, 37), (2, 1)])
@both
def test_the_sums_and_their_gradients(attend, parts, width, masked, last):
    arrays = case(parts, width, last=last, resets=(9, 25))
    mask = permitted(37, last, masked) if masked else None
    skip = 1 if masked else 0  # the first query sees no token
    y = as_numpy(attend(*arrays, parts, mask))[:, :, skip:]
    np.testing.assert_allclose(y, exact(*arrays, parts, mask)[:, :, skip:], atol=2e-6)
    got = gradients(attend, arrays, parts, mask, skip)
    for x, want in zip(got, gradients(composed, arrays, parts, mask, skip), strict=True):
        assert mx.all(mx.isfinite(x))
        np.testing.assert_allclose(np.array(x), np.array(want), atol=2e-5)


@pytest.mark.parametrize("phases", [0.1, 3.0, 40.0])
@both
def test_phases_keep_their_digits_over_thousands_of_tokens(attend, phases):
    """A float32 sum of all of them would have lost three digits and more."""
    q, keys, v = case(2, SIZE, length=4096, last=8, phases=phases)
    k, decay, phase = mx.split(keys, 3, -1)
    keys = mx.concatenate([k, 1e-3 * decay, mx.abs(phase)], -1)
    y = attend(q, keys, v, 2, None)
    np.testing.assert_allclose(as_numpy(y), exact(q, keys, v, 2), atol=2e-4)


@needs_native
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_query_that_sees_no_token_gives_zeros(parts):
    arrays, mask = case(parts, 1), permitted(37, 37)
    assert not relative_attention(*arrays, parts, mask)[:, :, 0].any()
    for x in gradients(relative_attention, arrays, parts, mask):
        assert mx.isfinite(x).all()


@pytest.mark.parametrize(
    ("batch", "length", "last"), [(0, 5, 5), (2, 0, 0), (2, 1, 1), (2, 16, 16), (2, 17, 0)]
)
@both
def test_empty_and_short(attend, batch, length, last):
    q, keys, v = case(2, SIZE, length=length, batch=batch)
    arrays = [q[:, :, length - last :], keys, v]
    y = attend(*arrays, 2, None)
    assert y.shape == (batch, 2, last, 5)
    if y.size:
        np.testing.assert_allclose(np.array(y), exact(*arrays, 2), atol=2e-6)
    got = gradients(attend, arrays, 2)
    assert [x.shape for x in got] == [x.shape for x in arrays]
    if not last:
        assert not any(x.any() for x in got)


@needs_native
@pytest.mark.parametrize("width", [1, SIZE])
def test_the_gradient_of_a_transition_is_no_difference_of_large_sums(width):
    """Of tokens that forget nearly all, it is e^-20 times the scores' and still has digits."""
    q, keys, v = case(1, width)
    keys = mx.concatenate([keys[..., :SIZE], mx.full((*keys.shape[:3], width), -20.0)], -1)
    got, want = (gradients(f, [q, keys, v], 1)[1] for f in (relative_attention, composed))
    assert error(got[..., SIZE:], as_numpy(want[..., SIZE:])) < 1e-5
    assert not got[:, :, 0, SIZE:].any()  # nothing comes before the first token


@needs_native
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_half_types_are_widened(dtype):
    arrays = [x.astype(dtype) for x in case(2, SIZE)]
    wide = [x.astype(mx.float32) for x in arrays]
    assert relative_attention(*arrays, 2, None).dtype == dtype

    def rounded(*arrays):
        return relative_attention(*arrays).astype(dtype).astype(mx.float32)

    pairs = zip(gradients(rounded, arrays, 2), gradients(rounded, wide, 2), strict=True)
    for got, want in [(rounded(*arrays, 2, None), rounded(*wide, 2, None)), *pairs]:
        assert mx.array_equal(got, want.astype(got.dtype))


@needs_native
def test_threads_compilation_and_layout_change_no_bit():
    arrays = case(2, SIZE, length=70, heads=3)
    got = gradients(relative_attention, arrays, 2)
    compiled = mx.compile(lambda *xs: gradients(relative_attention, xs, 2))(*arrays)
    turned = [mx.contiguous(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0) for x in arrays]
    for others in (compiled, gradients(relative_attention, turned, 2)):
        for x, same in zip(got, others, strict=True):
            assert mx.array_equal(x, same)
    one = relative_attention(*(x[1:, 2:] for x in arrays), 2, None)
    assert mx.array_equal(one, relative_attention(*arrays, 2, None)[1:, 2:])


@needs_native
@pytest.mark.parametrize(("parts", "width"), FORMS)
def test_second_derivatives_and_vmap(parts, width):
    arrays, mask = case(parts, width, length=19, last=18), permitted(19, 18)

    def seconds(function):
        def along(*arrays):
            return sum((x.square()).sum() for x in gradients(function, arrays, parts, mask, 1))

        return mx.grad(along, argnums=(0, 1, 2))(*arrays)

    for got, want in zip(seconds(relative_attention), seconds(composed), strict=True):
        assert error(got, as_numpy(want)) < 1e-5

    def attend(q, keys, v):
        return relative_attention(q, keys, v, parts, mask)

    pairs = [mx.stack([x, 0.5 * x]) for x in arrays]
    for i, y in enumerate(mx.vmap(attend)(*pairs)):
        assert mx.array_equal(y, attend(*(x[i] for x in pairs)))
    (y,), (moved,) = mx.jvp(lambda *a: [attend(*a)], arrays, arrays)
    (_,), (want,) = mx.jvp(lambda *a: [composed(*a, parts, mask)], arrays, arrays)
    assert mx.array_equal(y, attend(*arrays))
    np.testing.assert_allclose(np.array(moved)[:, :, 1:], np.array(want)[:, :, 1:], atol=2e-5)


@needs_native
def test_a_wrong_call_raises_before_it_reads():
    call, (q, keys, v) = extension().relative_attention, case(2, SIZE)
    wrong = [(q[:1], keys, v), (q, keys[..., 1:], v), (q, keys[:, :, 1:], v), (q, keys, v[:, 1:])]
    for arrays in wrong:
        with pytest.raises(ValueError, match="keys are"):
            call(*arrays, parts=2)
    with pytest.raises(ValueError, match="mask is"):
        call(q, keys, v, mx.ones((2, 1, 37, 36), mx.bool_), parts=2)
    with pytest.raises(ValueError, match="float32"):
        call(q.astype(mx.float16), keys, v, parts=2)
    with pytest.raises(ValueError, match="parts"):
        call(q, keys, v, parts=3)
