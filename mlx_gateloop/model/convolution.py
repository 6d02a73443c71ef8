"""A causal convolution over few tokens, before a recurrence."""

from functools import reduce
from typing import Any

import mlx.core as mx
import mlx.nn as nn

INPUTS = 1  # the entry of a layer's cache; 0 is the recurrence's state


class ShortConvolution(nn.Module):
    """A causal convolution over few tokens, one filter a channel; the weight is PyTorch's."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight = mx.random.uniform(-(size**-0.5), size**-0.5, (channels, 1, size))

    def __call__(self, x: mx.array, document: mx.array | None = None) -> mx.array:
        """Map `[batch, size - 1 + length, channels]` to `[batch, length, channels]`.

        `document`, `[batch, size - 1 + length, 1]`, numbers the documents; none reads another.
        """
        size, length = self.size, x.shape[1] - self.size + 1
        taps = []
        for i in range(size):
            part = slice(i, i + length)
            tap = x[:, part] * self.weight[:, 0, i]
            if document is not None:
                tap = mx.where(document[:, part] == document[:, size - 1 :], tap, 0)
            taps.append(tap)
        return reduce(mx.add, taps)


def after_past(
    x: mx.array, size: int, mask: mx.array | None, starts: mx.array | None, cache: Any
) -> tuple[mx.array, mx.array | None]:
    """Put the cache's last `size - 1` inputs before x `[batch, length, channels]`, and update it.

    Returns what a `ShortConvolution` takes; padding counts as zero.
    """
    if mask is not None:
        x = mx.where(mask[..., None], x, 0)
    batch, length, width = x.shape
    before, document = size - 1, None
    past = None if cache is None else cache[INPUTS]
    past = mx.zeros((batch, before, width), x.dtype) if past is None else past
    x = mx.concatenate([past, x], 1)
    if cache is not None:
        cache[INPUTS] = inputs_after(length, x, before, cache.lengths)
    if starts is not None:
        number = mx.cumsum(starts.astype(mx.int32), axis=1)
        document = mx.pad(number, [(0, 0), (before, 0)])[..., None]
    return x, document


def inputs_after(tokens: int, x: mx.array, count: int, lengths: mx.array | None) -> mx.array:
    """Return the last `count` inputs after some tokens of x, which begins with `count` others.

    Of `lengths` tokens the rest is padding.
    """
    if lengths is None:
        return mx.contiguous(x[:, tokens : tokens + count])
    last = mx.clip(lengths, 0, tokens)[:, None] + mx.arange(count)
    return mx.take_along_axis(x, last[..., None], 1)
