"""Softmax attention with relative positions against sums in float64."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_gateloop.ops.relative import relative_attention

HEADS, SIZE = 2, 3


def case(length, width, parts, phases=3.0, seed=0):
    """q, k, v and the logarithms of transitions, `[B, H, L, ...]`."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, 2, HEADS, length, SIZE)).astype(np.float32)
    decay = -rng.exponential(0.1, size=(2, HEADS, length, width)).astype(np.float32)
    phase = rng.uniform(-phases, phases, size=decay.shape).astype(np.float32)
    return q, k, v, [decay, phase][:parts]


def exact(q, k, v, log, last=None):
    q, k, v, *log = (x.astype(np.float64) for x in (q, k, v, *log))
    sums = np.cumsum(log[0] + 1j * log[1] if len(log) == 2 else log[0], axis=2)
    y = []
    for n in range(q.shape[2] - (last or q.shape[2]), q.shape[2]):
        positions = np.exp(sums[:, :, n : n + 1] - sums[:, :, : n + 1])
        scores = np.real(q[:, :, n : n + 1] * k[:, :, : n + 1] * positions).sum(-1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        y.append((weights[..., None] * v[:, :, : n + 1]).sum(2))
    return np.stack(y, axis=2)


def attend(q, k, v, log, last=None):
    q = q if last is None else q[:, :, -last:]
    keys = mx.array(np.concatenate([k, *log], axis=-1))
    return np.array(relative_attention(mx.array(q), keys, mx.array(v), len(log), None))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("width", [1, SIZE])
@pytest.mark.parametrize("length", [1, 15, 16, 50])
def test_equals_the_sums(length, width, parts):
    q, k, v, log = case(length, width, parts)
    np.testing.assert_allclose(attend(q, k, v, log), exact(q, k, v, log), atol=1e-5)


@pytest.mark.parametrize("last", [1, 7, 40])
def test_the_last_queries_are_those_of_all(last):
    case_ = case(50, SIZE, 2)
    np.testing.assert_allclose(attend(*case_, last=last), attend(*case_)[:, :, -last:], atol=1e-5)


@pytest.mark.parametrize("phases", [0.1, 3.0, 40.0])
def test_phases_keep_their_digits_over_thousands_of_tokens(phases):
    """A float32 sum of all of them would have lost three digits and more."""
    q, k, v, log = case(4096, SIZE, 2, phases)
    log[0] *= 1e-3
    log[1] = np.abs(log[1])
    got = attend(q, k, v, log, last=8)
    np.testing.assert_allclose(got, exact(q, k, v, log, last=8), atol=2e-4)


def test_a_token_that_forgets_everything_leaves_only_itself():
    """A decay that underflows gives scores of 0 before it, and no NaN in the gradient."""
    q, k, v, log = case(40, SIZE, 1)
    log[0][:, :, 20] = -300
    np.testing.assert_allclose(attend(q, k, v, log), exact(q, k, v, log), atol=1e-5)
    arrays = [mx.array(x) for x in (q, np.concatenate([k, *log], axis=-1), v)]

    def loss(q, keys, v):
        return (relative_attention(q, keys, v, 1, None) ** 2).sum()

    for gradient in mx.grad(loss, argnums=(0, 1, 2))(*arrays):
        assert mx.all(mx.isfinite(gradient)).item()
