"""Checks of tokens, of those that are left out, and of a model that can leave them out."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.model.lm import Model, readable_ids

Tokens = mx.array | np.ndarray | Sequence[int]
Places = Iterable[int]


def checked_tokens(model: nn.Module, tokens: Tokens) -> np.ndarray:
    """Return the tokens of a model, int64 `[tokens]`."""
    ids = _integers("tokens", tokens)
    if not len(ids):
        raise InputError("tokens: expected at least one, got none")
    most = readable_ids(model)
    if most is not None and not 0 <= ids.min() <= ids.max() < most:
        wrong = ids[(ids < 0) | (ids >= most)][0]
        raise InputError(f"tokens: expected ids from 0 to {most - 1}, got {wrong}")
    return ids


def check_model(model: nn.Module) -> None:
    """Reject layers that know positions, which would change without a token."""
    from mlx_lm.models.cache import ArraysCache

    if isinstance(model, Model):
        if model.args.rope_theta is not None:
            raise InputError(
                "model: without a token the rotary positions of the others would change; "
                "give a model without them"
            )
        return
    cache = model.make_cache() if hasattr(model, "make_cache") else [None]
    for layer, entry in enumerate(cache):
        if not isinstance(entry, ArraysCache):  # a state of constant size, without a position
            raise InputError(
                f"model: layer {layer} is not recurrent, so no step can be left out exactly; "
                "give a model with recurrent layers only"
            )


def checked_groups(left_out: Sequence[Places] | None, tokens: int) -> list[np.ndarray]:
    """Return the places of each group, as `checked_places`; None means a group for each token."""
    if left_out is None:
        return [np.array([m]) for m in range(tokens)]
    if not isinstance(left_out, Sequence):
        raise InputError(f"left_out: expected a list of places each, got {shown(left_out)}")
    groups = [checked_places(f"left_out[{i}]", g, tokens) for i, g in enumerate(left_out)]
    if empty := [i for i, group in enumerate(groups) if not len(group)]:
        raise InputError(f"left_out[{empty[0]}]: expected at least one place, got none")
    return groups


def checked_places(name: str, places: Places, tokens: int) -> np.ndarray:
    """Return places below a number of tokens, ascending and each once."""
    at = np.unique(_integers(name, places))
    if len(at) and not 0 <= at[0] <= at[-1] < tokens:
        wrong = at[0] if at[0] < 0 else at[-1]
        raise InputError(f"{name}: expected places from 0 to {tokens - 1}, got {wrong}")
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
