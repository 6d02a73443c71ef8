"""The state transition of a layer: gates that the data control or fixed ones, or a constant."""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.model.arguments import GATED, LayerArgs
from mlx_gateloop.model.constant_transitions import CONSTANT
from mlx_gateloop.ops import Transition


class StateTransitionLinear(nn.Linear):
    """A Linear that stays unquantized: what it computes is raised to the power of the length.

    Every quantizer of mlx-lm asks for `to_quantized`; not all of them ask a predicate.
    """

    @property
    def to_quantized(self) -> Any:
        raise AttributeError("state-transition projections are not quantized")

    def __setattr__(self, name: str, value: Any) -> None:
        # AWQ leaves its calibration inputs on each Linear it does not quantize; they would be
        # saved with the weights, gigabytes of them.
        if name != "input_feat":
            super().__setattr__(name, value)


def projection(cls: type[nn.Linear], inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A Linear with LeCun normal weights and zero bias, the initialization of flax's Dense.

    A normed input has unit variance; weights of variance 1 / inputs keep it. For the transition
    it means sigmoid and phase of a standard normal: |a| spread about 1/2, no phase preferred.
    """
    linear = cls(inputs, outputs, bias=bias)
    linear.weight = mx.random.normal((outputs, inputs), scale=inputs**-0.5)
    if bias:
        linear.bias = mx.zeros((outputs,))
    return linear


class Gates(nn.Module):
    """A layer with a state transition; its weights lie among the layer's own.

    Args:
        args: The layer's shape.
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.args = args

    def make_transition(self) -> None:
        """Adds the weights of the transition; v_proj must be there."""
        args = self.args
        if args.transition not in GATED:
            self.constant = CONSTANT[args.transition](args)
            return
        transitions = args.width if args.transition_per == "channel" else args.heads
        for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
            if args.transition == "fixed":
                # Drawn as the projections' outputs are, so that both kinds start alike.
                self[name] = mx.random.normal((transitions,))
            else:
                self[f"{name}_proj"] = projection(
                    StateTransitionLinear, args.hidden_size, transitions, args.bias
                )
        if args.longest_half_life is not None:
            self._spread_half_lives(args.longest_half_life)

    def _spread_half_lives(self, longest: float) -> None:
        """Channels that remember from 1 to `longest` tokens, drawn evenly in their logarithm.

        A channel that keeps longer takes in less: |a|^2 + (scale of v)^2 = 1 keeps the variance of
        its state that of one input. Weights of gamma are halved and those of theta, or theta
        itself, cut to a fifth, so that the text moves both but little at first.
        """
        width = self.v_proj.weight.shape[0]
        transitions = width if self.args.transition_per == "channel" else self.args.heads
        half_life = mx.exp(mx.random.uniform(0, math.log(longest), (transitions,)))
        magnitude = mx.exp(-math.log(2) / half_life)
        gamma = mx.log(magnitude / (1 - magnitude))  # the sigmoid's inverse
        if "gamma" in self:
            self.gamma = gamma
        else:
            self.gamma_proj.bias = gamma
            self.gamma_proj.weight *= 0.5
        if "theta" in self:
            self.theta *= 0.2
        elif "theta_proj" in self:
            self.theta_proj.weight *= 0.2
        scale = mx.repeat(mx.sqrt(1 - magnitude**2), width // transitions)
        self.v_proj.weight *= scale[:, None]

    def transition(self, x: mx.array) -> Transition:
        """The state transition at every token of the normed input x, in float32."""
        if "constant" in self:
            constant = self.constant.transition()
            phase = constant.second
            return Transition.polar(
                self._at_every_token(constant.first, x),
                None if phase is None else self._at_every_token(phase, x),
            )
        gamma = self._transition_input("gamma", x)
        if self.args.ablation == "transition":
            return Transition.polar(mx.zeros_like(gamma))
        if self.args.gate == "real":
            return Transition.sigmoid(gamma)
        polar = Transition.sigmoid if self.args.gate == "polar" else _polar_abs
        if self.args.ablation == "phase":
            return polar(gamma, None)
        return polar(gamma, self._transition_input("theta", x))

    def _transition_input(self, name: str, x: mx.array) -> mx.array:
        # float32 whatever the weights' dtype: an error of |a| is raised to the power of the length
        if name in self:
            return self._at_every_token(self[name].astype(mx.float32), x)
        return self._heads(self[f"{name}_proj"](x.astype(mx.float32)))

    def _at_every_token(self, constant: mx.array, x: mx.array) -> mx.array:
        return self._heads(mx.broadcast_to(constant, (*x.shape[:2], len(constant))))

    def _heads(self, x: mx.array) -> mx.array:
        if self.args.heads == self.args.width:
            return x
        return mx.unflatten(x, -1, (self.args.heads, -1))  # [B, L, D] -> [B, L, heads, D / heads]


def _polar_abs(gamma: mx.array, theta: mx.array | None) -> Transition:
    if theta is None:  # z is real: its phase is 0 or pi
        (magnitude,) = Transition.sigmoid(mx.abs(gamma)).planes()
        return Transition.of(mx.where(gamma < 0, -magnitude, magnitude))
    # |z| and arg z have no gradient at z = 0: there they are those of the constant z = 1,
    # except that |z| stays 0.
    square = gamma * gamma + theta * theta
    at_zero = square == 0
    absolute = mx.where(at_zero, 0, mx.sqrt(mx.where(at_zero, 1, square)))
    phase = mx.arctan2(mx.where(at_zero, 0, theta), mx.where(at_zero, 1, gamma))
    return Transition.polar(nn.log_sigmoid(absolute), phase)
