"""Hooks for the recurrences in mlx-lm's models: they report transitions, queries and keys.

A hook gets the arguments of a call by name, after the call, and computes the decays with the
model's own functions for many tokens at once. The tables below list the known names.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.errors import InputError
from mlx_gateloop.ops import Transition

Arguments = dict[str, Any]  # arguments of a call by name
Names = dict[str, Any]  # global names of the module that defines the called function


@dataclass(frozen=True)
class Report:
    """One call of a recurrence on one sequence, `[1, length, ...]`.

    h_n = a_n h_{n-1} + gain_n key_n^T v_n,   y_n = query_n h_n
    """

    kind: str  # short name of the recurrence, for display
    transition: Transition  # `[1, length, heads or channels]`, or `[1, length, heads, K]`
    # "query" and "key" `[1, length, groups, K]`, "gain" and "value" (the norm of it) `[1, length,
    # heads]`, "u" and "w" `[1, length, heads, K]` if the transition includes u_n w_n^T; absent
    # ones are 1
    reads: Arguments
    scale: mx.array | None = None  # `[channels, K]`: of a channel's log|a| for each of its states
    erases: bool = False  # the delta rule: a_n is followed by I - gain_n key_n key_n^T

    def masked(self, mask: Any) -> "Report":
        """Make padding steps the identity: no write, no decay."""
        if not isinstance(mask, mx.array):
            return self
        reads = self.reads  # of the same names with and without a mask
        if "key" in reads:
            live = mask.reshape(*mask.shape, *[1] * (reads["key"].ndim - 2))
            reads = reads | {"key": mx.where(live, reads["key"], 0.0)}
        return replace(self, transition=self.transition.masked(mask), reads=reads)


def _positive(a: mx.array) -> Transition:
    return Transition.polar(mx.log(a.astype(mx.float32)))  # may be 0, whose logarithm is -inf


def gated_delta(given: Arguments, names: Names, _: nn.Module) -> Report:
    """Gated delta rule: h_n = h_{n-1} diag(g) (I - beta k k^T) + beta v k^T."""
    gate = (given["A_log"], given["a"], given["dt_bias"])
    bound = given.get("lower_bound")
    g = names["compute_g"](*gate) if bound is None else names["compute_lower_bound_g"](*gate, bound)
    beta = mx.sigmoid(given["b"]) * (2.0 if given.get("allow_neg_eigval") else 1.0)
    reads = {"query": given["q"], "key": given["k"], "gain": beta}
    return Report("delta rule", _positive(g), reads, erases=True)


def ssm(given: Arguments, names: Names, _: nn.Module) -> Report:
    """Mamba-2's state space: h_n = exp(-exp(A_log) dt) h_{n-1} + dt x B^T, one decay per head."""
    step = names["compute_dt"](given["dt"], given["dt_bias"], given["time_step_limit"])
    log = -mx.exp(given["A_log"]).astype(step.dtype) * step
    reads = {"query": given["C"], "key": given["B"], "gain": step}
    return Report("state space", Transition.polar(log), reads)


def rnn_scan(given: Arguments, _: Names, __: nn.Module) -> Report:
    """RecurrentGemma's RG-LRU: h_n = a_n h_{n-1} + x_n, and h_n is the output."""
    return Report("gated channels", _positive(given["a"]), {})


def constant_slopes(given: Arguments, _: Names, __: nn.Module) -> Report:
    """Bailing's linear attention: h_n = exp(g) h_{n-1} + k_n^T v_n, with a constant g per head."""
    # [B, H, L, K] -> [B, L, H, K]
    query, key = (given[name].swapaxes(1, 2) for name in ("q", "k"))
    log = mx.broadcast_to(given["g"], query.shape[:3])
    reads = {"query": query * given["scale"], "key": key}
    return Report("constant slopes", Transition.polar(log), reads)


def wkv7(given: Arguments, _: Names, __: nn.Module) -> Report:
    """RWKV-7: h_n = h_{n-1} (diag(w) + a b^T) + v k^T."""
    reads = {"query": given["r"], "key": given["k"], "u": given["a"], "w": given["b"]}
    return Report("rwkv", _positive(given["w"]), reads)


def mamba(given: Arguments, names: Names, block: Any) -> Report:
    """Mamba's state space: h_n = exp(delta A) h_{n-1} + delta x B^T, where A is [channels, states].

    Delta is local to `ssm_step`, so this repeats its small projections.
    """
    rank, states = block.time_step_rank, block.ssm_state_size
    delta, B, C = mx.split(block.x_proj(given["x"]), [rank, rank + states], axis=-1)
    if "dt_layernorm" in block:
        delta, B, C = block.dt_layernorm(delta), block.b_layernorm(B), block.c_layernorm(C)
    elif hasattr(block, "mixer_norm"):  # mlx-lm 0.31 normalises twice
        delta, B, C = (block.mixer_norm(block.mixer_norm(part)) for part in (delta, B, C))
    elif block.use_bcdt_rms:
        eps = block.args.mixer_rms_eps
        delta, B, C = (mx.fast.rms_norm(part, None, eps) for part in (delta, B, C))
    delta = nn.softplus(block.dt_proj(delta))
    reads = {"query": C[:, :, None], "key": B[:, :, None], "gain": delta}
    return Report("selective scan", Transition.polar(-delta), reads, scale=-given["A"])


def gate_loop(given: Arguments, _: Names, __: nn.Module) -> Report:
    """Our own layers."""
    return _of_operator(Transition(given["form"], given["first"], given["second"]), given)


def gate_loop_update(given: Arguments, _: Names, __: nn.Module) -> Report:
    """Layers of `mlx_gateloop.family`."""
    return _of_operator(Transition.polar(given["log_a"]), given)


def _of_operator(transition: Transition, given: Arguments) -> Report:
    """Report what `gate_loop` read; without heads each channel is one."""
    query, key, value = (given[name] for name in "qkv")
    norm = mx.abs(value) if value.ndim == 3 else mx.linalg.norm(value, axis=-1)
    query, key = (x[..., None] if x.ndim == 3 else x for x in (query, key))
    return Report("gate loop", transition, {"query": query, "key": key, "value": norm})


@dataclass(frozen=True)
class Hook:
    """The functions that report one recurrence."""

    # makes a report from arguments; the inputs cover many tokens
    report: Callable[[Arguments, Names, Any], Report]
    # names of arguments `[1, length, ...]`, or `[1, ...]` for one token; the first is never None
    inputs: tuple[str, ...]
    constants: tuple[str, ...] = ()  # names of the other arguments
    axis: int = 1  # axis of the length in the inputs, except the mask


GATE = ("A_log", "dt_bias")
FUNCTIONS = {  # module-level functions that a layer calls
    "gated_delta_update": Hook(
        gated_delta, ("a", "b", "q", "k", "mask"), (*GATE, "lower_bound", "allow_neg_eigval")
    ),
    "ssm_update": Hook(ssm, ("dt", "B", "C", "mask"), (*GATE, "time_step_limit")),
    "rnn_scan": Hook(rnn_scan, ("a",)),
    "gate_loop_update": Hook(gate_loop_update, ("log_a", "q", "k", "v", "mask")),
    "recurrent_gla": Hook(constant_slopes, ("q", "k", "mask"), ("g", "scale"), axis=2),
}
METHODS = {  # methods of a layer
    "_wkv7": Hook(wkv7, ("w", "r", "k", "a", "b")),
    "ssm_step": Hook(mamba, ("x",), ("A",)),
}
GATE_LOOP = Hook(gate_loop, ("first", "second", "q", "k", "v", "mask"), ("form",))


class Call:
    """One call of a recurrence by `module`, before its report is computed."""

    def __init__(self, hook: Hook, given: Arguments, names: Names, module: Any) -> None:
        self.hook, self.names, self.module = hook, names, module
        kept = hook.inputs + hook.constants  # without the state, which is large
        self.given = {name: given[name] for name in kept if name in given}
        first = self.given[hook.inputs[0]]
        self.sequences = first.shape[0]
        self.tokens = 1 if first.ndim == 2 else first.shape[hook.axis]  # [1, D] is one step

    @property
    def arrays(self) -> list[mx.array]:
        return [value for value in self.given.values() if isinstance(value, mx.array)]

    def rows(self) -> list["Call"]:
        """Split the call of a batch into those of its sequences."""
        return [self._part(0, slice(i, i + 1)) for i in range(self.sequences)]

    def first(self, tokens: int) -> "Call":
        """Return the call for the first tokens, at least one."""
        return self if self.tokens == 1 else self._part(self.hook.axis, slice(tokens))

    def _part(self, axis: int, part: slice) -> "Call":
        inputs = {}
        for name, x in self.given.items():
            if name in self.hook.inputs and isinstance(x, mx.array):
                before = min(axis, 1) if name == "mask" else axis
                inputs[name] = x[(slice(None),) * before + (part,)]
        return Call(self.hook, self.given | inputs, self.names, self.module)


def gate_loop_call(
    layer: Any, q: mx.array, k: mx.array, v: mx.array, a: Transition, mask: mx.array | None
) -> Call:
    """Record a call of our layer, with the transition broadcast over tokens and channels."""
    if layer.args.transition == "none":
        raise InputError("attention without transitions keeps tokens unchanged")
    first, second = (
        None if plane is None else mx.broadcast_to(plane, q.shape) for plane in (a.first, a.second)
    )
    arrays = {"first": first, "second": second, "q": q, "k": k, "v": v, "mask": mask}
    return Call(GATE_LOOP, arrays | {"form": a.form}, {}, layer)


def report_of(calls: list[Call]) -> Report:
    """Join consecutive calls of one recurrence into one report."""
    last = calls[-1]
    joined = {name: _joined(name, calls) for name in last.hook.inputs}
    return last.hook.report(last.given | joined, last.names, last.module).masked(joined.get("mask"))


def _joined(name: str, calls: list[Call]) -> mx.array | None:
    parts = [call.given.get(name) for call in calls]
    if all(not isinstance(part, mx.array) for part in parts):
        return None
    if name == "mask":
        full = [mx.ones((1, call.tokens), mx.bool_) for call in calls]
        masked = [m if isinstance(m, mx.array) else f for m, f in zip(parts, full, strict=True)]
        return mx.concatenate(masked, 1)
    arrays = [part for part in parts if part is not None]
    if arrays[0].ndim == 2:  # [1, D] is one step
        return mx.stack(arrays, 1)
    return mx.concatenate(arrays, calls[0].hook.axis) if len(arrays) > 1 else arrays[0]
