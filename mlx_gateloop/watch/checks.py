"""Validation of tokens, of positions to leave out, and of the model."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.model.lm import Model, check_ids

Tokens = mx.array | np.ndarray | Sequence[int]
Positions = Iterable[int]


def checked_tokens(model: nn.Module, tokens: Tokens) -> np.ndarray:
    """Return token ids as int64 `[tokens]`."""
    ids = _integers("tokens", tokens)
    if not len(ids):
        raise InputError("tokens: expected at least one, got none")
    check_ids(model, ids.tolist())
    return ids


def check_model(model: nn.Module) -> None:
    """Reject layers with positions, which would change without a token."""
    from mlx_lm.models.cache import ArraysCache

    if isinstance(model, Model):
        if model.args.rope_theta is not None:
            reason = "leaving a token out would change the rotary positions of the others"
            raise InputError(f"model: {reason}; use a model without them")
        return
    cache = model.make_cache() if hasattr(model, "make_cache") else [None]
    for layer, entry in enumerate(cache):
        if not isinstance(entry, ArraysCache):  # a state of constant size, without a position
            reason = f"layer {layer} is not recurrent, so no step can be left out exactly"
            raise InputError(f"model: {reason}; use a model with recurrent layers only")


def checked_groups(left_out: Sequence[Positions] | None, tokens: int) -> list[np.ndarray]:
    """Return the positions of each group; None means one group per token."""
    if left_out is None:
        return [np.array([m]) for m in range(tokens)]
    if not isinstance(left_out, Sequence):
        raise InputError(f"left_out: expected a list of positions each, got {shown(left_out)}")
    groups = [checked_positions(f"left_out[{i}]", g, tokens) for i, g in enumerate(left_out)]
    if empty := [i for i, group in enumerate(groups) if not len(group)]:
        raise InputError(f"left_out[{empty[0]}]: expected at least one position, got none")
    return groups


def checked_positions(name: str, positions: Positions, tokens: int) -> np.ndarray:
    """Return sorted unique positions below the number of tokens."""
    at = np.unique(_integers(name, positions))
    if len(at) and not 0 <= at[0] <= at[-1] < tokens:
        wrong = at[0] if at[0] < 0 else at[-1]
        raise InputError(f"{name}: expected positions from 0 to {tokens - 1}, got {wrong}")
    return at


def _integers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.array(values if isinstance(values, mx.array) else list(values))
    except (TypeError, ValueError, OverflowError):
        array = np.array(None)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{name}: expected integers in one dimension, got {shown(values)}")
    return array.astype(np.int64)


def check_predicted(model: nn.Module, ids: np.ndarray) -> None:
    """Reject tokens after the first that the model has no output for."""
    if len(ids) > 1 and ids[1:].max() >= (outputs := num_outputs(model)):
        raise InputError(f"tokens: the model predicts ids below {outputs}, got {ids[1:].max()}")


def num_outputs(model: nn.Module) -> int:
    """Return the number of ids that a model predicts, without computing anything."""
    return model(mx.zeros((1, 1), mx.int32), model.make_cache()).shape[-1]


def check_indices(name: str, numbers: Sequence[int] | np.ndarray | None, count: int | None) -> None:
    """Check indices from 0 to below `count`."""
    for number in () if numbers is None else numbers:
        if number < 0 or number % 1 or (count is not None and number >= count):
            expected = "0 or more" if count is None else f"0 to {count - 1}"
            raise InputError(f"{name}: expected {expected}, got {shown(number)}")
