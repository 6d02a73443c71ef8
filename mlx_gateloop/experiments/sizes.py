"""Models with equal numbers of parameters."""

from dataclasses import replace
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.registered import module
from mlx_gateloop.train.setup import num_parameters


def equal_parameters(args: Any, goal: int) -> Any:
    """Choose the width of channel mixing that brings a model closest to a number of parameters."""
    make = module(args.model_type).Model

    def with_width(width: int) -> Any:
        return replace(args, intermediate_size=width)

    # The count is linear in the width. The models are never evaluated, so they take no memory.
    least, next_to_least = (num_parameters(make(with_width(width))) for width in (1, 2))
    wider = round((goal - least) / (next_to_least - least))
    if wider < 0:
        raise InputError(f"{least:,} parameters or more, the reference has {goal:,}")
    return with_width(1 + wider)
