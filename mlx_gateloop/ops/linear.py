"""Linear layers on a CPU that read weights as they are stored: 8-bit, or of two or four bytes."""

import mlx.core as mx

from mlx_gateloop.ops.cpu import extension_on_cpu

# Weights `[O, D]` of floats, or 8-bit ones, four in a uint32; their scales and zeros `[O, groups]`,
# w = q scale + zero; and a bias `[O]`
Stored = tuple[mx.array, mx.array | None, mx.array | None, mx.array | None]
MAX_ROWS = 16  # rows of x
BLOCK = 4096  # rows of weights that are expanded at once


def linear(x: mx.array, layers: list[Stored]) -> list[mx.array] | None:
    """Compute x W' + bias of several layers for few rows of x; None if the extension cannot."""
    if (extension := extension_on_cpu()) is None or not 0 < x.size <= MAX_ROWS * x.shape[-1]:
        return None
    return extension.linear(x, layers)


def must_expand(x: mx.array, layer: Stored) -> bool:
    """Tell if MLX on a CPU would be slow with weights of this type."""
    weight, scales, zeros, _ = layer
    is_8_bit = scales is not None and zeros is not None and 4 * weight.shape[-1] == x.shape[-1]
    is_short = scales is None and weight.dtype != mx.float32
    return (is_8_bit or is_short) and x.dtype == mx.float32 and extension_on_cpu() is not None


def expanding_linear(x: mx.array, layer: Stored) -> mx.array:
    """Compute x W' + bias for any x, with a few rows of W in float32 at a time."""
    weight, scales, zeros, bias = layer
    parts = []
    for start in range(0, len(weight), BLOCK):
        rows = slice(start, start + BLOCK)
        w = weight[rows]
        if scales is not None and zeros is not None:
            q = w.view(mx.uint8).reshape(len(w), scales.shape[1], -1).astype(mx.float32)
            w = (q * scales[rows, :, None] + zeros[rows, :, None]).reshape(len(w), -1)
        parts.append(x @ w.astype(mx.float32).T)
    y = mx.concatenate(parts, -1)
    return y if bias is None else y + bias
