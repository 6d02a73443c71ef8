"""MLX's optimizers in the paper's parameter groups, and its learning-rate schedule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np

from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.fused_update import Optimizer, Schedule

LEAST_STEPS = 100
TABLES = {"embed_tokens", "embeddings", "lm_head"}  # a row for each token


def cosine_with_warmup(peak: float, warmup: int, steps: int) -> Schedule:
    """Learning rate by step s: peak (s + 1) / warmup, then half a cosine down to 0 at `steps`."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup  # the first step learns, too
        share = min(1.0, (step - warmup) / max(1, steps - warmup))
        return peak * (1 + math.cos(math.pi * share)) / 2

    return rate


def piecewise(peak: float, knots: Sequence[tuple[int, float]]) -> Schedule:
    """Learning rate by step: peak times the factor in the step's middle, linear between knots."""
    places, factors = zip(*knots, strict=True)
    return lambda step: float(peak * np.interp(step + 0.5, places, factors))


def schedules(config: OptimizerConfig, steps: int) -> list[Schedule]:
    """Make the schedule of each group."""
    base, warmup = config.learning_rate, config.warmup_steps
    assert base is not None
    peaks = [config.state_transition_learning_rate or base, base, base]
    if config.phase_share is not None:
        peaks.append(config.phase_share * base)
    if config.knots:
        return [piecewise(peak, config.knots) for peak in peaks]
    warmup = steps // 10 if warmup is None else warmup
    return [cosine_with_warmup(peak, warmup, steps) for peak in peaks]


def decided(config: OptimizerConfig, steps_per_epoch: float) -> OptimizerConfig:
    """Replace a weight decay of None by 1 / (rate T): weights average the updates of T steps.

    T is an epoch, the best timescale of Wang and Aitchison (arXiv 2405.13698), and at least
    `LEAST_STEPS`.
    """
    if config.weight_decay is not None:
        return config
    assert config.learning_rate is not None
    if config.name == "muon":  # MLX adds its decay to the gradient
        return replace(config, weight_decay=0.0)
    timescale = max(LEAST_STEPS, steps_per_epoch)
    return replace(config, weight_decay=min(1 / (config.learning_rate * timescale), 1e30))


def make_optimizer(config: OptimizerConfig, steps: int) -> Optimizer:
    """Make groups: state transition; vectors; matrices, which decay; phases, if they have a share.

    Source: paper, appendix "WikiText103 hyperparameters": the projections that control the state
    transition have their own learning rate and no weight decay, which is the default.
    """
    is_muon, rates = config.name == "muon", schedules(config, steps)

    def group_of(path: str, weight: mx.array) -> int:
        if is_state_transition(path):
            return 3 if len(rates) > 3 and "theta" in path else 0
        is_table = is_muon and not TABLES.isdisjoint(path.split("."))
        is_table |= path.endswith("lower_bounds")  # HGRN's, a vector for each layer
        return 2 if weight.ndim == 2 and not is_table else 1

    decay = config.weight_decay
    assert decay is not None
    others = "adamw" if is_muon else config.name
    transition = (others, config.state_transition_weight_decay)
    kinds = [transition, (others, 0.0), (config.name, decay), transition][: len(rates)]
    betas = list(config.betas)
    make: dict[str, Callable[..., optim.Optimizer]] = {
        "adamw": partial(optim.AdamW, betas=betas, bias_correction=True),
        "lion": partial(optim.Lion, betas=betas),
        "adafactor": partial(optim.Adafactor, relative_step=False, scale_parameter=False),
        "muon": optim.Muon,
    }
    groups = [make[name](0.0, weight_decay=decay) for name, decay in kinds]
    # Adafactor and Muon look at the rows and columns of each matrix.
    return Optimizer(groups, rates, group_of, [name in ("adamw", "lion") for name, _ in kinds])
