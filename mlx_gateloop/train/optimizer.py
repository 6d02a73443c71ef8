"""AdamW in the paper's parameter groups, and its learning-rate schedule."""

import mlx.core as mx
import mlx.optimizers as optim

from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.fused_update import Optimizer, Schedule


def cosine_with_warmup(peak: float, warmup: int, steps: int) -> Schedule:
    """Learning rate by step s: peak (s + 1) / warmup, then half a cosine down to 0 at `steps`."""
    decay = optim.cosine_decay(peak, max(1, steps - warmup))
    if warmup == 0:
        return decay
    # The first step has the rate peak / warmup, not 0, so it learns too.
    warm = optim.linear_schedule(peak / warmup, peak + peak / warmup, warmup)
    return optim.join_schedules([warm, decay], [warmup])


def make_optimizer(config: OptimizerConfig, steps: int) -> Optimizer:
    """Make AdamW with three groups: state transition; other vectors; other matrices, which decay.

    Source: paper, appendix "WikiText103 hyperparameters": the projections that control the state
    transition have their own learning rate and no weight decay, which is the default.
    """
    warmup = steps // 10 if config.warmup_steps is None else config.warmup_steps

    def adamw(weight_decay: float) -> optim.AdamW:
        betas = list(config.betas)
        return optim.AdamW(0.0, betas=betas, weight_decay=weight_decay, bias_correction=True)

    def group_of(path: str, weight: mx.array) -> int:
        return 0 if is_state_transition(path) else 1 if weight.ndim < 2 else 2

    base = config.learning_rate
    peaks = [config.state_transition_learning_rate or base, base, base]
    return Optimizer(
        [adamw(config.state_transition_weight_decay), adamw(0.0), adamw(config.weight_decay)],
        [cosine_with_warmup(peak, warmup, steps) for peak in peaks],
        group_of,
    )
