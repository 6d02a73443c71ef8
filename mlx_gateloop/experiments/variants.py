"""The models that experiments compare, by name."""

from dataclasses import replace
from typing import Any

from mlx_gateloop.lm import Model, ModelArgs
from mlx_gateloop.train.start import num_parameters

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
