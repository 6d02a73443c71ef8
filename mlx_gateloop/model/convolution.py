"""A causal convolution over few tokens, before a recurrence."""

from functools import reduce
from typing import Any

import mlx.core as mx
import mlx.nn as nn

STATE, INPUTS = 0, 1  # entries of a layer's cache: the recurrence's state, a convolution's inputs


class ShortConvolution(nn.Module):
    """A causal convolution over few tokens, one filter a channel; the weight is PyTorch's."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = mx.random.uniform(-(size**-0.5), size**-0.5, (channels, 1, size))

    def __call__(self, x: mx.array, document: mx.array | None = None) -> mx.array:
        """Map `[batch, size - 1 + length, channels]` to `[batch, length, channels]`.

        `document`, `[batch, size - 1 + length, 1]`, numbers the documents; none reads another.
        """
        size = self.weight.shape[-1]
        length = x.shape[1] - size + 1
        # One token takes a third of the time so; in 16 bits a sum is rounded otherwise.
        if length == 1 and document is None and x.dtype == mx.float32:
            return (x * self.weight[:, 0].T).sum(1, keepdims=True)
        taps = []
        for i in range(size):
            part = slice(i, i + length)
            tap = x[:, part] * self.weight[:, 0, i]
            if document is not None:
                tap = mx.where(document[:, part] == document[:, size - 1 :], tap, 0)
            taps.append(tap)
        return reduce(mx.add, taps)


def with_past(
    x: mx.array, size: int, mask: mx.array | None, starts: mx.array | None, cache: Any
) -> tuple[mx.array, mx.array | None, mx.array]:
    """Prepend the cache's last `size - 1` inputs to x `[batch, length, channels]`.

    Padding counts as zero. Return the arguments of a `ShortConvolution`, and the last inputs for
    the cache: zero if they are another document's than the last token.
    """
    if mask is not None:
        x = mx.where(mask[..., None], x, 0)
    batch, length, width = x.shape
    count = size - 1
    past, lengths = (None, None) if cache is None else (cache[INPUTS], cache.lengths)
    past = mx.zeros((batch, count, width), x.dtype) if past is None else past.astype(x.dtype)
    x = last = mx.concatenate([past, x], 1)
    document = None
    if starts is not None:
        number = mx.cumsum(starts.astype(mx.int32), axis=1)
        document = mx.pad(number, [(0, 0), (count, 0)])[..., None]
        last = mx.where(document == document[:, -1:], x, 0)
    if lengths is None:
        return x, document, mx.contiguous(last[:, length:])
    position = mx.clip(lengths, 0, length)[:, None] + mx.arange(count)  # the rest is padding
    return x, document, mx.take_along_axis(last, position[..., None], 1)
