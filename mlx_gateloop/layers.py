"""The layers of the GateLoop model: time mixing, channel mixing and the block of both.

Paper section 4 and appendix "Model Details". Activations are `[batch, length, hidden]`.
"""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.arguments import LayerArgs
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.pointwise import gelu, layer_norm, sigmoid, silu

ACTIVATE: dict[str, Callable[[mx.array], mx.array]] = {
    "identity": lambda x: x,
    "tanh": mx.tanh,
    "sigmoid": sigmoid,
}


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


class TimeMixing(nn.Module):
    """The GateLoop operator with content-aware inputs (paper section 4).

        q, k, v = Linear(x),   a = sigmoid(gamma) exp(i theta),   y = Re(q h)

    Args:
        args: Its shape, where the variants are explained.
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.args = args
        size, width = args.hidden_size, args.width
        bias = args.bias if args.projection_bias is None else args.projection_bias
        self.q_proj = projection(nn.Linear, size, width, bias)
        if args.input_gate in ("linear", "sigmoid"):
            self.k_proj = projection(nn.Linear, size, width, bias)
        self.v_proj = projection(nn.Linear, size, width, bias)
        transitions = width if args.transition_per == "channel" else args.heads
        for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
            if args.transition == "fixed":
                # Drawn as the projections' outputs are, so that both kinds start alike.
                self[name] = mx.random.normal((transitions,))
            else:
                transition = projection(StateTransitionLinear, size, transitions, args.bias)
                self[f"{name}_proj"] = transition
        if args.longest_half_life is not None:
            self._spread_half_lives(args.longest_half_life)
        if args.sub_norm:
            self.sub_norm = LayerNorm(width, args.layer_norm_eps)
        if args.output_gate:
            self.gate_proj = projection(nn.Linear, size, width, bias)
        if args.projects_output:
            self.out_proj = projection(nn.Linear, width, size, bias)

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

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """What the operator adds to the residual stream.

        Args:
            x: Normed input `[batch, length, hidden]`.
            mask: `[batch, length]` bool, False where a token is padding: the state passes it
                unchanged. Anything but an array (mlx-lm's AWQ passes "causal") means no padding.
            cache: One entry, the state after the last token, or None.

        Returns:
            `[batch, length, hidden]` in x's dtype.
        """
        args = self.args
        q = self._heads(ACTIVATE[args.query_activation](self.q_proj(x)))
        v = self._heads(ACTIVATE[args.value_activation](self.v_proj(x)))
        transition = self.transition(x)
        key = self._key(x, v, transition)
        if (record := getattr(cache, "record", None)) is not None:
            record(q, key, transition)
        reads_state = args.state_activation != "identity"
        y, state = gate_loop(
            mx.ones_like(q) if reads_state else q,
            key,
            v,
            transition,
            None if cache is None else cache[0],
            mask=mask if isinstance(mask, mx.array) else None,
            # a = 1 forgets no rounding error: those of a tree of sums are smaller than a loop's
            backend="ops" if args.ablation == "transition" else "auto",
        )
        if cache is not None:
            cache[0] = state
        if reads_state:
            y = q * ACTIVATE[args.state_activation](y)
        y = y.reshape(*x.shape[:2], args.width)  # heads are joined again
        if "sub_norm" in self:
            y = self.sub_norm(y)
        if "gate_proj" in self:
            y = y * silu(self.gate_proj(x))
        return self.out_proj(y) if "out_proj" in self else y

    def transition(self, x: mx.array) -> Transition:
        """The state transition at every token of the normed input x, in float32."""
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
            fixed = self[name].astype(mx.float32)
            return self._heads(mx.broadcast_to(fixed, (*x.shape[:2], len(fixed))))
        return self._heads(self[f"{name}_proj"](x.astype(mx.float32)))

    def _key(self, x: mx.array, v: mx.array, transition: Transition) -> mx.array:
        if self.args.input_gate == "none":
            return mx.ones_like(v)
        if self.args.input_gate == "tied":
            key = sigmoid(-transition.first).astype(v.dtype)  # 1 - |a| without cancellation
            return mx.broadcast_to(key, v.shape)
        key = self.k_proj(x)
        return self._heads(sigmoid(key) if self.args.input_gate == "sigmoid" else key)

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


class LayerNorm(nn.LayerNorm):
    """MLX's module with weight and bias; on a CPU the extension computes it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)

    def __call__(self, x: mx.array) -> mx.array:
        return layer_norm(x, self.weight, self.bias, self.eps)


def norm(args: LayerArgs) -> nn.Module:
    """A new norm of the model's kind.

    "rms" is x / |x| sqrt(hidden_size) weight as in gateloop-transformer, where torch's F.normalize
    divides by 1e-12 at least: its square, seen as a mean.
    """
    if args.norm == "rms":
        return nn.RMSNorm(args.hidden_size, 1e-24 / args.hidden_size)
    if args.norm == "none":
        return nn.Identity()
    return LayerNorm(args.hidden_size, args.layer_norm_eps)


class ChannelMixing(nn.Module):
    """A point-wise feed-forward network with GELU (paper, "Model Details")."""

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.activate = gelu if args.activation == "gelu" else nn.gelu_approx
        self.up_proj = projection(nn.Linear, args.hidden_size, args.intermediate_size, args.bias)
        self.down_proj = projection(nn.Linear, args.intermediate_size, args.hidden_size, args.bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(self.activate(self.up_proj(x)))


class GateLoopLayer(nn.Module):
    """Norm and time mixing without a skip, for use in other models."""

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.time_norm = norm(args)
        self.time_mixing = TimeMixing(args)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """As `TimeMixing`, of an input that was not normed."""
        return self.time_mixing(self.time_norm(x), mask, cache)


class Block(nn.Module):
    """One model layer: x + time_mixing(norm(x)), then x + channel_mixing(norm(x)).

    With norm_position "post": norm(x + time_mixing(x)), then norm(x + channel_mixing(x)).
    """

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.is_post = args.norm_position == "post"
        self.time_norm = norm(args)
        self.time_mixing = TimeMixing(args)
        self.channel_norm = norm(args)
        self.channel_mixing = ChannelMixing(args)
        self.dropout = nn.Dropout(args.dropout)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if self.is_post:
            x = self.time_norm(x + self.dropout(self.time_mixing(x, mask, cache)))
            return self.channel_norm(x + self.dropout(self.channel_mixing(x)))
        x = x + self.dropout(self.time_mixing(self.time_norm(x), mask, cache))
        return x + self.dropout(self.channel_mixing(self.channel_norm(x)))
