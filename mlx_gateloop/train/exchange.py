"""The sum of a gradient over ranks, in large buffers."""

from collections.abc import Callable
from itertools import chain

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mlx_gateloop.distributed.world import World
from mlx_gateloop.train.fused_update import Tree

Leaves = list[tuple[str, mx.array]]
BUFFER_BYTES = 16 << 20
# MLX's ring sends arrays of 512 kB a rank and more in both directions, by threads that wait
# actively: ranks with a processor each took 15 times as long on a busy machine.
SHARED_BYTES_PER_RANK = 384 << 10


def start_sum(world: World, gradient: Tree, dtype: mx.Dtype) -> Callable[[], Tree]:
    """Start to sum the ranks' gradients, sent in `dtype`; return a function that waits.

    On a GPU the exchange begins with the backward pass. A CPU needs its processors for that first.
    """
    if world.size == 1:
        return lambda: gradient
    is_shared = len(set(world.hosts)) < world.size
    size = (SHARED_BYTES_PER_RANK * world.size if is_shared else BUFFER_BYTES) // dtype.size
    named: Leaves = list(dict(tree_flatten(gradient)).items())
    groups: list[Leaves] = [[]]  # of at least `size` elements each, but the last
    for leaf in reversed(named):  # the backward pass begins with the last layer
        if sum(array.size for _, array in groups[-1]) >= size:
            groups.append([])
        groups[-1].append(leaf)
    summed = [_summed(world, leaves, size, dtype) for leaves in groups]

    def finish() -> Tree:
        for leaves in summed:
            with world.waiting("exchange of gradients"):
                mx.eval(leaves)
        return tree_unflatten(list(chain(*summed))[::-1])

    return finish


def _summed(world: World, leaves: Leaves, size: int, dtype: mx.Dtype) -> Leaves:
    """The sums of a group's arrays, in buffers of at most `size` elements."""
    flat = mx.concatenate([leaf.reshape(-1) for _, leaf in leaves])
    buffers = [flat[start : start + size].astype(dtype) for start in range(0, flat.size, size)]
    flat = mx.concatenate([world.start_sum(buffer) for buffer in buffers]).astype(mx.float32)
    ends = np.cumsum([leaf.size for _, leaf in leaves])[:-1].tolist()
    parts = zip(leaves, mx.split(flat, ends), strict=True)
    summed = [(name, part.reshape(leaf.shape)) for (name, leaf), part in parts]
    world.start([array for _, array in summed])
    return summed
