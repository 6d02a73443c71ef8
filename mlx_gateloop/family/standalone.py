"""A recurrent language model (GLA, HGRN, HGRN2, Mamba-2) in one file, on MLX and mlx-lm alone.

    h_n = a_n h_{n-1} + k_n^T v_n,   y_n = q_n h_n

`mlx_lm.generate --trust-remote-code` runs it from a model's directory. The mlx-gateloop package has
the same classes with faster kernels, checks of config.json, and training.

Shapes: B batch, L length, H heads of K keys and V values. Axis 1 of states, for real and imaginary
parts, has one entry.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_ssm_mask

InputError = ValueError
Count = int
STRICT = None
Cache: TypeAlias = Any
Mask: TypeAlias = Any
Caches = list[Cache] | None
Marks, marked = mx.array | None, None
CHUNK = 16  # tokens in one parallel step: bounds its memory
sigmoid, silu = mx.sigmoid, nn.silu


def raises_input_error(cls: type) -> type:
    """Leave a class as it is; the package turns the errors of its checks into one line."""
    return cls


def dataclass(config: None) -> Callable[[type], type]:
    """Make a dataclass, whose values are not checked."""
    return dataclasses.dataclass


def projection(cls: type[nn.Linear], inputs: int, outputs: int, bias: bool) -> nn.Linear:
    return cls(inputs, outputs, bias=bias)


class Transition:
    """Gates as their logarithm."""

    @staticmethod
    def polar(log_a: mx.array) -> mx.array:
        return log_a


def gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_a: mx.array,
    state: mx.array | None,
    mask: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Apply the recurrence to L tokens; return y and the state after the last one, float32.

    q, k and log_a are `[B, L, H, K]`, v and y `[B, L, H, V]`, the state `[B, 1, H, K, V]`. Without
    heads, all are `[B, L, H]`, and the state is `[B, 1, H]`.
    """
    if v.ndim == 3:
        state = None if state is None else state[..., None, None]
        q, k, v, log_a = (x[..., None] for x in (q, k, v, log_a))
        y, state = gate_loop(q, k, v, log_a, state, mask)
        return y[..., 0], state[..., 0, 0]
    dtype = v.dtype
    q, k, v, log_a = (x.astype(mx.float32) for x in (q, k, v, log_a))
    if mask is not None:
        log_a, v = (mx.where(mask[..., None, None], x, 0) for x in (log_a, v))
    h = mx.zeros((len(v), *k.shape[2:], v.shape[-1])) if state is None else state[:, 0]
    outputs = []
    for start in range(0, v.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        y, h = _chunk(q[:, part], k[:, part], v[:, part], log_a[:, part], h)
        outputs.append(y)
    return mx.concatenate(outputs, 1).astype(dtype), h[:, None]


def _chunk(
    q: mx.array, k: mx.array, v: mx.array, log_a: mx.array, h: mx.array
) -> tuple[mx.array, mx.array]:
    """Apply the recurrence to few tokens. Exponents are sums; differences would lose digits."""
    total = mx.cumsum(log_a, 1)
    is_later = mx.tri(v.shape[1], k=-1, dtype=mx.bool_)[..., None, None]
    decay = mx.exp(mx.cumsum(mx.where(is_later, log_a[:, :, None], 0), 1))
    scores = mx.tril(mx.einsum("bnhk,bmhk,bnmhk->bhnm", q, k, decay))
    y = mx.einsum("bhnm,bmhv->bnhv", scores, v)
    y = y + mx.einsum("bnhk,bhkv->bnhv", q * mx.exp(total), h)
    left = k * mx.exp(mx.cumsum(log_a, 1, reverse=True, inclusive=False))
    h = mx.exp(total[:, -1])[..., None] * h + mx.einsum("bmhk,bmhv->bhkv", left, v)
    return y, h


def padding_mask(cache: Cache, steps: int) -> mx.array | None:
    """Mark the next tokens that are not padding; None if all are."""
    return create_ssm_mask(mx.zeros((1, steps)), cache)


def padding_and_starts(mask: Mask) -> tuple[Mask, None]:
    """Return the mask of padding; the package alone resets states at documents."""
    return mask, None


def advance(cache: list[Cache], steps: int) -> None:
    """Count the padding down."""
    for layer_cache in cache:
        layer_cache.advance(steps)
