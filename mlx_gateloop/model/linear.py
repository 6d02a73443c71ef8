"""Linear layers and embeddings that on a CPU read their weights as they are stored."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.ops import linear as ops
from mlx_gateloop.ops.cpu import extension

KINDS = nn.Linear, nn.QuantizedLinear, nn.Embedding, nn.QuantizedEmbedding


class Embedding(nn.Embedding):
    """MLX's Embedding, which may give vectors of another dtype than its weights'."""

    dtype: mx.Dtype | None = None

    def __call__(self, tokens: mx.array) -> mx.array:
        x: mx.array = super().__call__(tokens)
        return x if self.dtype is None else x.astype(self.dtype)


def project(x: mx.array, *layers: nn.Module) -> list[mx.array]:
    """Apply several layers to one input `[..., D]`; on a CPU at once if it has few rows."""
    stored = [_stored(layer) for layer in layers if isinstance(layer, KINDS)]
    if len(stored) == len(layers) and (y := ops.linear(x, stored)):
        return y
    return [_product(layer, x) for layer in layers]


def _stored(layer: Any) -> ops.Stored:
    return layer["weight"], layer.get("scales"), layer.get("biases"), layer.get("bias")


def _product(layer: Any, x: mx.array) -> mx.array:
    if isinstance(layer, KINDS) and ops.must_expand(x, _stored(layer)):
        return ops.expanding_linear(x, _stored(layer))
    return layer.as_linear(x) if hasattr(layer, "as_linear") else layer(x)


def can_keep_short() -> bool:
    """Tell if `project` reads 8-bit and 16-bit weights fast on a CPU."""
    return extension() is not None


def keep_short(model: nn.Module) -> None:
    """Make all of a model's weights float32 but the matrices of layers that `project` applies."""
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, KINDS)]
    kept = [layer.weight for layer in layers]
    model.set_dtype(mx.float32)
    for layer, weight in zip(layers, kept, strict=True):
        layer.weight = weight
        if isinstance(layer, Embedding):
            layer.dtype = mx.float32
