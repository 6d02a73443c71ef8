"""The clipped update of all weights, in which the small arrays of a group are one vector.

An operation on each small array would take longer to launch than to compute.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_unflatten

JOINED = "joined"
SMALL = 2**14  # elements; copying that many takes less time than a launch

Named = dict[str, mx.array]
Tree = dict[str, Any]  # arrays in nested dicts and lists, as MLX has parameters
Schedule = Callable[[int], float]


@dataclass
class Optimizer:
    """Groups of weights, each with an optimizer and a learning rate by step of the run.

    A group's own steps are its updates, as Adam's bias correction needs them; a step of the run
    that is skipped is none. `group_of` gives the number of a weight's group, by its path and value.
    """

    groups: list[optim.Optimizer]
    schedules: list[Schedule]
    group_of: Callable[[str, mx.array], int]
    joins: list[bool]  # the groups whose small arrays are joined
    carried: list[list[mx.array]] = field(default_factory=list)  # states before the next batch

    @property
    def state(self) -> list[Tree]:
        """Step, learning rate and moments of each group; compiled functions capture the dicts."""
        return [group.state for group in self.groups]

    @state.setter
    def state(self, values: list[Tree]) -> None:
        for group, value in zip(self.groups, values, strict=True):
            group.state.update(value)  # in place

    def init(self, parameters: Tree) -> None:
        """Make the moments of these weights, all zero."""
        for group, weights in zip(self.groups, self.join(parameters), strict=True):
            group.init(weights)
        self.schedule(0)

    def schedule(self, step: int) -> None:
        """Set the learning rates of a step of the run, counted from 0."""
        for group, rate in zip(self.groups, self.schedules, strict=True):
            group.learning_rate = rate(step)

    def join(self, tree: Tree) -> list[Named]:
        """Divide a tree of the weights' shapes into groups, and join the small arrays of each."""
        joined = []
        for small, large in self._divided(tree):
            flat = [array.flatten() for array in small.values()]
            joined.append(large | ({JOINED: mx.concatenate(flat)} if flat else {}))
        return joined

    def split(self, joined: list[Named], like: Tree) -> Tree:
        """Undo `join` of a tree of these shapes."""
        leaves: Named = {}
        for arrays, (small, large) in zip(joined, self._divided(like), strict=True):
            leaves |= {name: arrays[name] for name in large}
            ends = list(accumulate(array.size for array in small.values()))[:-1]
            parts: Any = mx.split(arrays[JOINED], ends) if small else []
            for (name, array), part in zip(small.items(), parts, strict=True):
                leaves[name] = part.reshape(array.shape)
        return cast(Tree, tree_unflatten(list(leaves.items())))

    def _divided(self, tree: Tree) -> list[tuple[Named, Named]]:
        """Divide a tree's arrays into those of each group that are joined, and its others."""
        groups: list[tuple[Named, Named]] = [({}, {}) for _ in self.groups]
        leaves: Named = dict(tree_flatten(tree))
        for name, leaf in leaves.items():
            number = self.group_of(name, leaf)
            small, large = groups[number]
            is_joined = leaf.size < SMALL and self.joins[number]
            (small if is_joined else large)[name] = leaf
        return groups


def make_update(
    model: nn.Module, optimizer: Optimizer, clip_norm: float
) -> Callable[[Tree, int, mx.array], mx.array]:
    """Build the update by a scaled gradient; a norm that is not finite changes the rates alone."""
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def compiled(gradient: Tree, scale: mx.array) -> mx.array:
        parameters = model.trainable_parameters()
        joined = tree_map(lambda leaf: leaf / scale, optimizer.join(gradient))
        clipped, norm = optim.clip_grad_norm(joined, clip_norm)
        weights = optimizer.join(parameters)
        before = [weights, tree_map(lambda leaf: leaf, optimizer.state)]
        parts = zip(optimizer.groups, clipped, weights, strict=True)
        updated = [group.apply_gradients(grad, part) for group, grad, part in parts]
        after = [updated, optimizer.state]
        weights, moments = tree_map(partial(mx.where, mx.isfinite(norm)), after, before)
        model.update(optimizer.split(weights, parameters))
        optimizer.state = moments
        return norm

    def update(gradient: Tree, position: int, scale: mx.array) -> mx.array:
        optimizer.schedule(position)  # not compiled: a run may change its plan
        return compiled(gradient, scale)

    return update
