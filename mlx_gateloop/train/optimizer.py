"""AdamW in the paper's parameter groups, and its learning-rate schedule."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_unflatten

from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.fused_update import Named, join, split

Schedule = Callable[[mx.array], mx.array]
Tree = dict[str, Any]
# The names in the state of an `AdamW`: of all its weights, and of each.
SCALARS = ("step", "learning_rate")
MOMENTS = ("m", "v")


def cosine_with_warmup(peak: float, warmup: int, steps: int) -> Schedule:
    """Learning rate by step s: peak (s + 1) / warmup, then half a cosine down to 0 at `steps`.

    Args:
        peak: the largest rate.
        warmup: steps of the linear part; 0 starts at the peak.
        steps: steps of the whole run.
    """
    decay = optim.cosine_decay(peak, max(1, steps - warmup))
    if warmup == 0:
        return decay
    # The first step has the rate peak / warmup, not 0, so it learns too.
    warm = optim.linear_schedule(peak / warmup, peak + peak / warmup, warmup)
    return optim.join_schedules([warm, decay], [warmup])


class Optimizer(optim.MultiOptimizer):
    """Groups of weights with a learning rate each, which follow the steps of the run.

    A group's own steps are its updates, as Adam's bias correction needs them; a step of the run
    that is skipped is none. Each group updates its small weights as one array, see
    `train.fused_update`.

    Args:
        optimizers: one per group.
        filters: tests of path and weight, for all groups but the last.
        schedules: each group's learning rate by step of the run.
    """

    def __init__(
        self,
        optimizers: list[optim.AdamW],
        filters: list[Callable[[str, mx.array], bool]],
        schedules: list[Schedule],
    ) -> None:
        super().__init__(optimizers, filters)
        self.schedules = schedules
        self.schedule(mx.array(0, mx.uint64))

    def init(self, parameters: Tree) -> None:
        """Make the moments of these weights, all zero."""
        for group, weights in zip(self.optimizers, self.join(parameters), strict=True):
            group.init(weights)

    def apply_gradients(self, gradients: Tree, parameters: Tree) -> Tree:
        """Compute the updated weights; `update` calls it.

        Args:
            gradients: of some weights.
            parameters: these weights, and any others.
        """
        names, weights = dict(tree_flatten(gradients)), dict(tree_flatten(parameters))
        part = cast(Tree, tree_unflatten([(name, weights[name]) for name in names]))
        return self.split(self.updated(self.join(gradients), self.join(part)), part)

    def updated(self, gradients: list[Named], weights: list[Named]) -> list[Named]:
        """Compute the weights after a step and change the moments; all arrays are joined."""
        parts = zip(self.optimizers, gradients, weights, strict=True)
        return [group.apply_gradients(gradient, part) for group, gradient, part in parts]

    def join(self, tree: Tree) -> list[Named]:
        """Join the small arrays of each group in a tree of the weights' shapes."""
        return [join(arrays) for arrays in self._groups(tree)]

    def split(self, joined: list[Named], like: Tree) -> Tree:
        """Undo `join` of a tree of these shapes."""
        leaves: Named = {}
        for arrays, shapes in zip(joined, self._groups(like), strict=True):
            leaves |= split(arrays, shapes)
        return cast(Tree, tree_unflatten(list(leaves.items())))

    def by_weight(self, parameters: Tree) -> Named:
        """Name the state's arrays by the weights that they belong to, as checkpoints do."""
        named: Named = {}
        for number, (group, weights) in enumerate(self._with_groups(parameters)):
            state = dict(group.state)
            named |= {f"states.{number}.{name}": state.pop(name) for name in SCALARS}
            for moment in MOMENTS:
                arrays = split({name: of_one[moment] for name, of_one in state.items()}, weights)
                named |= {f"states.{number}.{name}.{moment}": a for name, a in arrays.items()}
        return named

    def restore(self, named: Named, parameters: Tree) -> None:
        """Put the arrays of `by_weight` in place."""
        for number, (group, weights) in enumerate(self._with_groups(parameters)):
            group.state.update({name: named[f"states.{number}.{name}"] for name in SCALARS})
            for moment in MOMENTS:
                arrays = {name: named[f"states.{number}.{name}.{moment}"] for name in weights}
                for name, array in join(arrays).items():
                    group.state[name][moment] = array

    def _with_groups(self, tree: Tree) -> Iterator[tuple[optim.AdamW, Named]]:
        return zip(self.optimizers, self._groups(tree), strict=True)

    def _groups(self, tree: Tree) -> list[Named]:
        groups: list[Named] = [{} for _ in self.optimizers]
        leaves: Named = dict(tree_flatten(tree))
        for name, leaf in leaves.items():
            number = next(n for n, test in enumerate(self.filters) if test(name, leaf))
            groups[number][name] = leaf
        return groups

    def schedule(self, step: mx.array) -> None:
        """Set the learning rates of a step of the run, counted from 0."""
        for group, rate in zip(self.optimizers, self.schedules, strict=True):
            group.learning_rate = rate(step)


def make_optimizer(config: OptimizerConfig, steps: int) -> Optimizer:
    """Make AdamW with three groups: state transition; other vectors; other matrices, which decay.

    Source: paper, appendix "WikiText103 hyperparameters": the projections that control the state
    transition have their own learning rate and no weight decay, which is the default.
    """
    warmup = steps // 10 if config.warmup_steps is None else config.warmup_steps

    def adamw(weight_decay: float) -> optim.AdamW:
        betas = list(config.betas)
        return optim.AdamW(0.0, betas=betas, weight_decay=weight_decay, bias_correction=True)

    base = config.learning_rate
    peaks = [config.state_transition_learning_rate or base, base, base]
    return Optimizer(
        [adamw(config.state_transition_weight_decay), adamw(0.0), adamw(config.weight_decay)],
        [lambda path, _: is_state_transition(path), lambda _, leaf: leaf.ndim < 2],
        [cosine_with_warmup(peak, warmup, steps) for peak in peaks],
    )
