"""Activations, norm and loss: on CPUs from the C++ extension, thirty times faster than MLX."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.ops.cpu import FLOATS, extension_on_cpu


def gelu(x: mx.array) -> mx.array:
    """Compute x Phi(x) with the exact normal distribution function Phi, in x's shape and dtype."""
    return _pointwise("gelu", nn.gelu, x)


def silu(x: mx.array) -> mx.array:
    """Compute x / (1 + exp(-x)); argument and result as in `gelu`."""
    return _pointwise("silu", nn.silu, x)


def sigmoid(x: mx.array) -> mx.array:
    """Compute 1 / (1 + exp(-x)); argument and result as in `gelu`."""
    return _pointwise("sigmoid", mx.sigmoid, x)


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    """Compute (x - mean) / sqrt(variance + eps) weight + bias over the last axis `[..., D]`."""
    extension = extension_on_cpu()
    fits = x.size > 0 and weight.shape == bias.shape == x.shape[-1:]
    if extension is None or not fits or {a.dtype for a in (x, weight, bias)} != {mx.float32}:
        return mx.fast.layer_norm(x, weight, bias, eps)
    return extension.layer_norm(x, weight, bias, eps)


def cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """Compute log sum_j exp(x_j) - x_target in nats; logits `[..., V]`, integer targets `[...]`."""
    if targets.shape != logits.shape[:-1] or not mx.issubdtype(targets.dtype, mx.integer):
        expected = f"integers of shape {logits.shape[:-1]}"
        raise ValueError(f"targets: expected {expected}, got {targets.dtype} {targets.shape}")
    extension = extension_on_cpu()
    logits = logits.astype(mx.float32)
    if extension is None or logits.size == 0:
        return nn.losses.cross_entropy(logits, targets)
    # uint64 beyond int64 becomes negative, which is as wrong
    return extension.cross_entropy(logits, targets.astype(mx.int64))


def summed_cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """Sum `cross_entropy` over the targets that are asked, those that are not negative."""
    return mx.where(targets >= 0, cross_entropy(logits, mx.maximum(targets, 0)), 0).sum()


def _pointwise(name: str, otherwise: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    if (extension := extension_on_cpu()) is None or x.dtype not in FLOATS:
        return otherwise(x)
    return getattr(extension, name)(x)
