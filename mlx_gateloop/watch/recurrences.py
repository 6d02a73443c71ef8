"""Edits of recurrences, ours and those of mlx-lm: they change a call's arguments.

Tokens with the same edits become a call of their own, so constants such as a head's slope can
change for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import log, prod
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.transition import RESET
from mlx_gateloop.watch import hooks
from mlx_gateloop.watch.hooks import Arguments, Hook

OPERATOR = Hook(hooks.gate_loop, ("q",))  # of our layers
NOTHING = 200.0  # -log|a| of what keeps nothing: exp(-200) is zero in float32


@dataclass(frozen=True)
class Editable:
    """Changes of some tokens' arguments that set what their channels `at` keep and write."""

    decays: Callable[[Arguments], tuple[int, ...]]  # their shape: channels, heads or [heads, K]
    keep: Callable[[Arguments, mx.array, float], Arguments]
    write: Callable[[Arguments, mx.array, float], Arguments]
    held: Callable[[mx.array], mx.array]  # `at` in a shape that broadcasts to the state
    state: str = "state"  # the name of its argument
    by_token: bool = False  # `keep` reads the arguments of one token
    # False at a document's first token, which keeps nothing of those before, edited or not
    keeps: Callable[[Arguments], mx.array | bool] = lambda given: True


def _rate(keep: float) -> float:
    return -log(keep) if keep > 0 else NOTHING


def _scaled(name: str, given: Arguments, at: mx.array, factor: float) -> Arguments:
    return {name: mx.where(at, factor * given[name], given[name])}


def _keep_gate(given: Arguments, at: mx.array, keep: float) -> Arguments:
    planes = [mx.broadcast_to(plane, given["k"].shape) for plane in given["a"].planes()]
    kept = zip((keep, 0.0), planes, strict=False)
    return {"a": Transition("cartesian", *(mx.where(at, to, plane) for to, plane in kept))}


def _keep_delta(given: Arguments, at: mx.array, keep: float) -> Arguments:
    """Invert exp(-exp(A_log) softplus(a + dt_bias))."""
    if given["lower_bound"] is not None:
        raise InputError("keep: the gate of this layer has a lower bound; leave keep out")
    rate = mx.array(_rate(keep)) * mx.exp(-given["A_log"].astype(mx.float32))
    softplus = rate + mx.log(-mx.expm1(-rate))
    return {"a": mx.where(at, softplus - given["dt_bias"], given["a"])}


def _write_delta(given: Arguments, at: mx.array, factor: float) -> Arguments:
    whole = at if given["a"].ndim == 3 else at.all(-1)  # [H, K] -> [H]
    if given["a"].ndim == 4 and not mx.array_equal(whole, at.any(-1)):
        raise InputError("write: this layer writes whole heads; choose all channels of a head")
    return _scaled("v", given, whole[:, None], factor)


def _keep_ssm(given: Arguments, at: mx.array, keep: float) -> Arguments:
    """Invert exp(-exp(A_log) dt), with the step dt of this token."""
    low, high = given["time_step_limit"]
    step = mx.logaddexp(given["dt"].astype(mx.float32) + given["dt_bias"], 0)[0, 0]
    step = mx.maximum(mx.clip(step, low, high), 1e-30)  # 0 has no rate
    rate = mx.array(_rate(keep)) / step
    return {"A_log": mx.where(at, mx.log(rate), given["A_log"])}


def _write_ssm(given: Arguments, at: mx.array, factor: float) -> Arguments:
    repeats = len(given["A_log"]) // given["B"].shape[2]
    parts = {name: mx.repeat(given[name], repeats, 2) for name in "BC"}
    return parts | _scaled("B", parts, at[:, None], factor)


def _of_heads(at: mx.array) -> mx.array:
    return at[:, None, None]


EDITABLE = {
    "gate_loop": Editable(
        lambda given: given["k"].shape[2:],
        _keep_gate,
        partial(_scaled, "k"),
        lambda at: at[..., None] if at.ndim == 2 else at,
        "h0",
        keeps=lambda given: given["a"].first != RESET[given["a"].form],  # cartesian ones are real
    ),
    "rnn_scan": Editable(
        lambda given: given["a"].shape[2:],
        lambda given, at, keep: {"a": mx.where(at, keep, given["a"])},
        partial(_scaled, "x"),
        lambda at: at,
        "h0",
    ),
    "gate_loop_update": Editable(
        lambda given: given["log_a"].shape[2:],
        lambda given, at, keep: {"log_a": mx.where(at, -_rate(keep), given["log_a"])},
        partial(_scaled, "k"),
        lambda at: at[..., None] if at.ndim == 2 else at,  # [H, K, V], or [D] without heads
        keeps=lambda given: given["log_a"] > -mx.inf,
    ),
    "recurrent_gla": Editable(
        lambda given: given["g"].shape,
        lambda given, at, keep: {"g": mx.where(at, -_rate(keep), given["g"])},
        lambda given, at, factor: _scaled("k", given, _of_heads(at), factor),
        _of_heads,
        "h",
    ),
    "_wkv7": Editable(
        lambda given: given["w"].shape[2:],
        lambda given, at, keep: {"w": mx.where(at, keep, given["w"])},
        partial(_scaled, "k"),
        lambda at: at[:, None, :],  # [H, V, K]
    ),
    "ssm_update": Editable(
        lambda given: given["A_log"].shape, _keep_ssm, _write_ssm, _of_heads, by_token=True
    ),
    "gated_delta_update": Editable(
        lambda given: given["a"].shape[2:],
        _keep_delta,
        _write_delta,
        lambda at: _of_heads(at) if at.ndim == 1 else at[:, None, :],  # [H, V, K]
    ),
}  # `ssm_step` of Mamba computes its decays inside


class EditedRecurrence:
    """A recurrence of one layer with its edits; it counts the tokens of the text."""

    def __init__(self) -> None:
        self.edits: list[tuple[str, Any]] = []  # the argument's name, and the edit
        self.position = 0

    def __call__(self, q: Any, k: Any, v: Any, a: Any, h0: Any = None, **options: Any) -> Any:
        """Compute what `gate_loop` does, with the edits."""
        return self.run(gate_loop, OPERATOR, {"q": q, "k": k, "v": v, "a": a, "h0": h0} | options)

    def run(self, function: Any, hook: Hook, given: Arguments) -> tuple[mx.array, mx.array]:
        editable = EDITABLE[function.__name__]
        first, state = given[hook.inputs[0]], given[editable.state]
        if len(first) > 1:
            raise InputError(f"edit: expected one text, got a batch of {len(first)}")
        count, shape = first.shape[hook.axis], editable.decays(given)
        start = 0 if state is None else self.position
        self.position = start + count
        if not count:
            return function(**given)
        edits = [(each, _chosen(name, each, shape)) for name, each in self.edits]
        alone = [editable.by_token or each.value is not None for each, _ in edits]

        def acting(n: int) -> tuple[list[int], int]:
            tokens = [each.tokens for each, _ in edits]
            here = [i for i, at in enumerate(tokens) if at is None or start + n in at]
            return here, n * any(alone[i] for i in here)

        outputs = []
        for (here, _), group in groupby(range(count), acting):
            tokens = list(group)
            part = _part(given, hook, editable, slice(tokens[0], tokens[-1] + 1), count)
            part[editable.state], keeps = state, editable.keeps(part)
            for each, at in (edits[i] for i in here):
                if each.keep is not None:
                    part |= editable.keep(part, at & keeps, each.keep)
                if each.write != 1:
                    part |= editable.write(part, at, each.write)
            y, state = function(**part)
            outputs.append(y)
            for each, at in (edits[i] for i in here):
                if each.value is not None:
                    value = _of_state(each, at, state) if hook is OPERATOR else each.value
                    state = mx.where(editable.held(at), value, state)
        return mx.concatenate(outputs, hook.axis), state


def _chosen(name: str, each: Any, shape: tuple[int, ...]) -> mx.array:
    width, at = prod(shape), _index(each.channels)
    if isinstance(at, list) and (wrong := [c for c in at if not 0 <= c < width]):
        raise InputError(f"{name}.channels: expected 0 to {width - 1}, got {wrong[0]}")
    chosen = np.zeros(width, bool)
    try:
        chosen[at] = True
    except IndexError:
        raise InputError(f"{name}.channels: expected indices, got {shown(each.channels)}") from None
    return mx.array(chosen).reshape(shape)


def _index(channels: Sequence[int] | np.ndarray | slice | None) -> list[int] | slice:
    if isinstance(channels, slice):
        return channels
    return slice(None) if channels is None else list(channels)


def _of_state(edit: Any, at: mx.array, state: mx.array) -> mx.array:
    """Give an edit's value for some of our channels, in their order, the shape of the state."""
    # [1, P, H, K, V] -> [P, H K, V]; without heads [1, P, D] -> [P, D]
    flat = state.reshape(state.shape[1], at.size, *state.shape[4:])
    flat[:, mx.array(np.arange(at.size)[_index(edit.channels)])] = mx.array(edit.value)
    return flat.reshape(state.shape)


def _part(given: Arguments, hook: Hook, editable: Editable, part: slice, count: int) -> Arguments:
    """Slice the arguments that have a row for each token."""

    def sliced(name: str, value: Any) -> Any:
        if isinstance(value, Transition):
            planes = (sliced(name, plane) for plane in (value.first, value.second))
            return Transition(value.form, *planes)
        if not isinstance(value, mx.array) or name in (*hook.constants, editable.state):
            return value
        axis = 1 if name == "mask" else hook.axis
        if value.ndim <= axis or value.shape[axis] != count:
            return value
        return value[(slice(None),) * axis + (part,)]

    return {name: sliced(name, value) for name, value in given.items()}
