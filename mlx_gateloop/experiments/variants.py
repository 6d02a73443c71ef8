"""The models that experiments compare, by name."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.lm import Model, ModelArgs

HEADS = {"num_heads": 4}  # of the models that have heads; the others have one a channel
# What each changes in `ModelArgs`. All else is the same for all.
VARIANTS: dict[str, dict[str, Any]] = {
    "data_controlled": {"transition": "data_controlled"},
    "fixed": {"transition": "fixed"},
    "real_gates": {"transition": "data_controlled", "gate": "real"},
    "linear_attention": {"transition": "linear_attention"},
    "retnet": {"transition": "retnet", **HEADS},
    "lru": {"transition": "lru"},
    "s4d_lin": {"transition": "s4d_lin"},
    "s4d_inv": {"transition": "s4d_inv"},
    "s5": {"transition": "s5"},
    "softmax": {"mixer": "softmax", "transition": "none", **HEADS},
    "softmax_data_controlled": {"mixer": "softmax", "transition": "data_controlled", **HEADS},
}
REFERENCE = "data_controlled"  # what the others are measured against


def num_parameters(model: nn.Module) -> int:
    """How many numbers the model learns."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.trainable_parameters()))
    return sum(weight.size for weight in weights.values())


def equal_parameters(args: ModelArgs, goal: int) -> ModelArgs:
    """The same model with the width of channel mixing that brings it closest to a size.

    Args:
        args: the model.
        goal: its parameters.
    """

    def with_width(width: int) -> ModelArgs:
        return replace(args, intermediate_size=width)

    # The count is linear in the width. The models are never evaluated, so they take no memory.
    least, next_to_least = (num_parameters(Model(with_width(width))) for width in (1, 2))
    return with_width(1 + max(0, round((goal - least) / (next_to_least - least))))
