"""The state transition of a layer: data-controlled gates, fixed gates or a constant."""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.model.arguments import GATED, LayerArgs
from mlx_gateloop.model.constant_transitions import CONSTANT
from mlx_gateloop.model.linear import project
from mlx_gateloop.ops import Transition
from mlx_gateloop.ops.pointwise import sigmoid

Projections = dict[str, mx.array]  # projections of the input, by the names of their layers
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "gamma_proj", "theta_proj", "gate_proj")
# With spread initial half-lives: radians per token, and factors of the data-dependent part.
PHASES = (0.01, math.pi)
DATA_DEPENDENT = {"gamma": 0.5, "theta": 0.2}
LARGEST = 85.0  # gamma in the scale of inputs: beyond, 1 - |a| is 0 in float32 and the slope 0 / 0


class StateTransitionLinear(nn.Linear):
    """A Linear that stays float32 when others are quantized: errors grow with the length."""

    @property
    def to_quantized(self) -> Any:
        raise AttributeError("state-transition projections are not quantized")

    def __setattr__(self, name: str, value: object) -> None:
        # AWQ leaves its calibration inputs, gigabytes, on each Linear that it does not quantize;
        # they would be saved with the weights.
        if name != "input_feat":
            super().__setattr__(name, value)

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x.astype(mx.float32))


def projection(cls: type[nn.Linear], inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """Make a Linear with normal weights of variance 1 / inputs (LeCun) and zero bias.

    So |a| starts as the sigmoid of a standard normal. flax's Dense truncates the normal.
    """
    linear = cls(inputs, outputs, bias=bias)
    linear.weight = mx.random.normal((outputs, inputs), scale=inputs**-0.5)
    if bias:
        linear.bias = mx.zeros((outputs,))
    return linear


class Gates(nn.Module):
    """A layer with a state transition; the transition's weights are the layer's own."""

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.args = args

    def add_transition(self) -> None:
        args = self.args
        if args.transition not in GATED:
            self.constant = CONSTANT[args.transition](args)
            return
        for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
            if args.transition == "fixed":
                # Distributed as the projections' outputs at one token. Over many tokens these
                # average out to a half-life of 0.86 tokens, and fixed ones keep what they drew.
                self[name] = mx.random.normal((args.transitions,))
            else:
                self[f"{name}_proj"] = projection(
                    StateTransitionLinear, args.hidden_size, args.transitions, args.bias
                )

    def spread_transitions(self, longest: float) -> mx.array:
        """Spread half-lives from 1 to `longest` tokens and phases from 0.01 to pi, by logarithm.

        They are the constant part of gamma and theta. The part that the text controls starts
        smaller: phases that differ from token to token would scramble a longer memory. Returns each
        channel's sqrt(1 - |a|^2), `[width]`, the scale that gives the state the variance of one
        input.
        """
        half_life = self._log_uniform(1, longest)
        gamma = -mx.log(mx.expm1(math.log(2) / half_life))  # the sigmoid's inverse of |a|
        self._start_at("gamma", gamma)
        if self.args.gate == "polar":
            self._start_at("theta", self._log_uniform(*PHASES))
        return mx.repeat(input_scale(gamma), self.args.width // self.args.transitions)

    def _log_uniform(self, low: float, high: float) -> mx.array:
        return mx.exp(mx.random.uniform(math.log(low), math.log(high), (self.args.transitions,)))

    def _start_at(self, name: str, constant: mx.array) -> None:
        if name in self:
            self[name] = constant
        else:
            self[f"{name}_proj"].bias = constant
            self[f"{name}_proj"].weight *= DATA_DEPENDENT[name]

    def project(self, x: mx.array) -> Projections:
        """Compute all projections of the normed input x."""
        names = [name for name in PROJECTIONS if name in self]
        return dict(zip(names, project(x, *(self[name] for name in names)), strict=True))

    def transition(self, x: mx.array, projections: Projections) -> Transition:
        """Compute the state transition at every token of the normed input x, in float32."""
        if "constant" in self:
            constant = self.constant.transition()
            parts = (part for part in (constant.first, constant.second) if part is not None)
            return Transition.polar(*(self._at_every_token(part, x) for part in parts))
        gamma = self._transition_input("gamma", x, projections)
        if self.args.ablation == "transition":
            return Transition.polar(mx.zeros_like(gamma))
        is_real = self.args.gate == "real" or self.args.ablation == "phase"
        theta = None if is_real else self._transition_input("theta", x, projections)
        return (_polar_abs if self.args.gate == "polar_abs" else Transition.sigmoid)(gamma, theta)

    def _transition_input(self, name: str, x: mx.array, projections: Projections) -> mx.array:
        # always float32: an error of |a| is raised to the power of the length
        if name in self:
            return self._at_every_token(self[name].astype(mx.float32), x)
        return self._heads(projections[f"{name}_proj"])

    def _at_every_token(self, constant: mx.array, x: mx.array) -> mx.array:
        return self._heads(mx.broadcast_to(constant, (*x.shape[:2], len(constant))))

    def _heads(self, x: mx.array) -> mx.array:
        if self.args.heads == self.args.width:
            return x
        return mx.unflatten(x, -1, (self.args.heads, -1))  # [B, L, D] -> [B, L, heads, D / heads]


def input_scale(gamma: mx.array) -> mx.array:
    """Compute sqrt(1 - |a|^2) of |a| = sigmoid(gamma), without cancellation near |a| = 1."""
    rest = sigmoid(-mx.minimum(gamma, LARGEST))  # 1 - |a|
    return mx.sqrt(rest * (2 - rest))


def _polar_abs(gamma: mx.array, theta: mx.array | None) -> Transition:
    if theta is None:  # z is real: its phase is 0 or pi
        (magnitude,) = Transition.sigmoid(mx.abs(gamma)).planes()
        return Transition.of(mx.where(gamma < 0, -magnitude, magnitude))
    # |z| and arg z have no gradient at z = 0: there they get that of the constant z = 1, while |z|
    # stays 0.
    square = gamma * gamma + theta * theta
    at_zero = square == 0
    absolute = mx.where(at_zero, 0, mx.sqrt(mx.where(at_zero, 1, square)))
    phase = mx.arctan2(mx.where(at_zero, 0, theta), mx.where(at_zero, 1, gamma))
    return Transition.polar(nn.log_sigmoid(absolute), phase)
