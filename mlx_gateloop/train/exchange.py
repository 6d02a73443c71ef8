"""The sum of a gradient over ranks, in a few large buffers."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mlx_gateloop.distributed.world import World

Tree = dict[str, Any]  # arrays in nested dicts and lists, as MLX has parameters
BUFFER_BYTES = 16 << 20  # larger ones were slower: they leave the caches


def sum_gradient(world: World, gradient: Tree, dtype: mx.Dtype) -> Tree:
    """Sum a gradient over the ranks, in a few large buffers.

    Args:
        world: The ranks.
        gradient: The float32 gradient of each rank's share.
        dtype: The dtype in which it is sent and summed.
    """
    if world.size == 1:
        return gradient
    summed: list[tuple[str, mx.array]] = []
    named: list[tuple[str, mx.array]] = list(dict(tree_flatten(gradient)).items())
    for leaves in _buffers(named, dtype.size):
        flat = mx.concatenate([leaf.reshape(-1) for _, leaf in leaves]).astype(dtype)
        flat = world.sum(flat, "exchange of gradients").astype(mx.float32)
        ends = np.cumsum([leaf.size for _, leaf in leaves])[:-1].tolist()
        for (name, leaf), part in zip(leaves, mx.split(flat, ends), strict=True):
            summed.append((name, part.reshape(leaf.shape)))
    tree: Tree = tree_unflatten(summed)
    return tree


def _buffers(
    leaves: list[tuple[str, mx.array]], itemsize: int
) -> Iterator[list[tuple[str, mx.array]]]:
    """Group arrays so that each group but the last has at least `BUFFER_BYTES`."""
    group: list[tuple[str, mx.array]] = []
    for leaf in leaves:
        group.append(leaf)
        if sum(array.size for _, array in group) * itemsize >= BUFFER_BYTES:
            yield group
            group = []
    if group:
        yield group
