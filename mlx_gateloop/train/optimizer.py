"""AdamW in the paper's parameter groups, and its learning-rate schedule."""

from collections.abc import Callable

import mlx.core as mx
import mlx.optimizers as optim

from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.config import OptimizerConfig

Schedule = Callable[[mx.array], mx.array]


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
    that is skipped is none.

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
