"""AdamW in the paper's parameter groups, and its learning-rate schedule."""

from collections.abc import Callable

import mlx.core as mx
import mlx.optimizers as optim

from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.config import OptimizerConfig


def cosine_with_warmup(peak: float, warmup: int, steps: int) -> Callable[[mx.array], mx.array]:
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


def make_optimizer(config: OptimizerConfig, steps: int) -> optim.MultiOptimizer:
    """Make AdamW with three groups: state transition; other vectors; other matrices, which decay.

    Source: paper, appendix "WikiText103 hyperparameters": the projections that control the state
    transition have their own learning rate and no weight decay.
    """
    warmup = steps // 10 if config.warmup_steps is None else config.warmup_steps

    def adamw(peak: float, weight_decay: float) -> optim.AdamW:
        return optim.AdamW(
            cosine_with_warmup(peak, warmup, steps),
            betas=list(config.betas),
            weight_decay=weight_decay,
            bias_correction=True,
        )

    base = config.learning_rate
    transition = config.state_transition_learning_rate or base
    return optim.MultiOptimizer(
        [adamw(transition, 0.0), adamw(base, 0.0), adamw(base, config.weight_decay)],
        [lambda path, _: is_state_transition(path), lambda _, leaf: leaf.ndim < 2],
    )
