"""The layers of the GateLoop model: time mixing, channel mixing and the block of both.

Paper section 4 and appendix "Model Details". Activations are `[batch, length, hidden]`.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.pointwise import gelu, layer_norm, silu


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
        hidden_size: Width of the model, split evenly over the heads.
        num_heads: hidden_size for the paper's max-headed model.
        transition: "data_controlled" (gamma and theta are projections of x) or "fixed" (learned
            per channel, the paper's baseline).
        gate: "polar" as above; "polar_abs", |a| = sigmoid(|z|) and arg a = arg z of
            z = gamma + i theta (gateloop-transformer's); "real", without theta.
        output_gate: Multiply y by SiLU(Linear(x)) and project it.
        bias: Whether projections have a bias.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        transition: str,
        gate: str,
        output_gate: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.gate = gate
        size = hidden_size
        self.q_proj = projection(nn.Linear, size, size, bias)
        self.k_proj = projection(nn.Linear, size, size, bias)
        self.v_proj = projection(nn.Linear, size, size, bias)
        for name in ("gamma",) if gate == "real" else ("gamma", "theta"):
            if transition == "fixed":
                # Drawn as the projections' outputs are, so that both kinds start alike.
                self[name] = mx.random.normal((size,))
            else:
                self[f"{name}_proj"] = projection(StateTransitionLinear, size, size, bias)
        if output_gate:
            self.gate_proj = projection(nn.Linear, size, size, bias)
            self.out_proj = projection(nn.Linear, size, size, bias)

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
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        y, state = gate_loop(
            q,
            k,
            v,
            self.transition(x),
            None if cache is None else cache[0],
            mask=mask if isinstance(mask, mx.array) else None,
        )
        if cache is not None:
            cache[0] = state
        y = y.reshape(x.shape)  # heads are joined again
        if "out_proj" in self:
            y = self.out_proj(y * silu(self.gate_proj(x)))
        return y

    def transition(self, x: mx.array) -> Transition:
        """The state transition at every token of the normed input x, in float32."""
        gamma = self._transition_input("gamma", x)
        if self.gate == "real":
            return Transition.sigmoid(gamma, None)
        theta = self._transition_input("theta", x)
        if self.gate == "polar_abs":
            return _polar_abs(gamma, theta)
        return Transition.sigmoid(gamma, theta)

    def _transition_input(self, name: str, x: mx.array) -> mx.array:
        # float32 whatever the weights' dtype: an error of |a| is raised to the power of the length
        if name in self:
            fixed = self[name].astype(mx.float32)
            return self._heads(mx.broadcast_to(fixed, x.shape))
        return self._heads(self[f"{name}_proj"](x.astype(mx.float32)))

    def _heads(self, x: mx.array) -> mx.array:
        if self.num_heads == x.shape[-1]:
            return x
        return mx.unflatten(x, -1, (self.num_heads, -1))  # [B, L, D] -> [B, L, heads, D / heads]


def _polar_abs(gamma: mx.array, theta: mx.array) -> Transition:
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


class ChannelMixing(nn.Module):
    """A point-wise feed-forward network with exact GELU (paper, "Model Details")."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.up_proj = projection(nn.Linear, hidden_size, intermediate_size, bias)
        self.down_proj = projection(nn.Linear, intermediate_size, hidden_size, bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(gelu(self.up_proj(x)))


class Block(nn.Module):
    """One model layer: x + time_mixing(norm(x)), then x + channel_mixing(norm(x))."""

    def __init__(
        self,
        time_mixing: TimeMixing,
        channel_mixing: ChannelMixing,
        hidden_size: int,
        norm_eps: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.time_norm = LayerNorm(hidden_size, eps=norm_eps)
        self.time_mixing = time_mixing
        self.channel_norm = LayerNorm(hidden_size, eps=norm_eps)
        self.channel_mixing = channel_mixing
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        x = x + self.dropout(self.time_mixing(self.time_norm(x), mask, cache))
        return x + self.dropout(self.channel_mixing(self.channel_norm(x)))
