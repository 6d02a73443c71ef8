"""GateLoop as one layer, for any model."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import TimeMixing, make_norm


class GateLoop(nn.Module):
    """The GateLoop operator with projections of its input, a model's layer (paper, section 4).

        q, k, v, gamma, theta = Linear(x),   a_n = sigmoid(gamma_n) exp(i theta_n)
        h_n = a_n h_{n-1} + k_n^T v_n,       y_n = Re(q_n h_n)

    There is no skip connection.

    Args:
        dim: Channels of input and output.
        heads: Heads of the operator; None means one per channel (max-headed, the paper's model).
        transition: "data_controlled", projections of x; "fixed", learned per channel; or one of the
            models that GateLoop generalises, see `LayerArgs`.
        gate: "polar", the paper's; "real", without theta; "polar_abs", gateloop-transformer's.
        output_gate: Multiply the output by SiLU(Linear(x)), and project it.
        norm: A norm of x before the projections: "none", "layer" or "rms".
        longest_half_life: Half-lives of the channels' memories at the start are spread from 1 token
            to this; None is as published, mostly below ten tokens.
        options: Further arguments of `LayerArgs`, but `mixer`, `conv_size` and `dropout`.

    Raises:
        InputError: An argument that cannot be used, a ValueError.

    Examples:
        >>> import mlx.core as mx
        >>> import mlx_gateloop as gl
        >>> layer = gl.GateLoop(64, heads=4)
        >>> x = mx.random.normal((2, 100, 64))
        >>> y, state = layer(x)
        >>> y_next, state = layer(x[:, :1], state)
        >>> y.shape, y_next.shape, state.shape
        ((2, 100, 64), (2, 1, 64), (2, 2, 4, 16, 16))
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int | None = None,
        transition: str = "data_controlled",
        gate: str = "polar",
        output_gate: bool = False,
        norm: str = "none",
        longest_half_life: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        shape: dict[str, Any] = {"hidden_size": dim, "num_heads": heads, "mixer": "gate_loop"}
        shape |= {"transition": transition, "gate": gate, "norm": norm, "output_gate": output_gate}
        args = LayerArgs(**shape, longest_half_life=longest_half_life, **options)
        if args.conv_size is not None:
            raise args.invalid("conv_size", "null in a layer, whose state is one array")
        if args.norm_position != "pre":
            raise args.invalid("norm_position", "pre in a layer, which has no skip connection")
        if args.dropout:
            raise args.invalid("dropout", "0 in a layer, with an nn.Dropout after it")
        self.time_norm = make_norm(args)
        self.time_mixing = TimeMixing(args)

    def __call__(
        self,
        x: mx.array,
        state: mx.array | None = None,
        *,
        mask: mx.array | None = None,
        reverse: bool = False,
    ) -> tuple[mx.array, mx.array]:
        """Mix the tokens of x with those before them.

        Args:
            x: Input `[B, L, dim]`.
            state: The state after earlier tokens, which an earlier call returned; None is zero.
            mask: Bool `[B, L]`; where False the token changes no state and no other token's output.
            reverse: Run from the last token to the first.

        Returns:
            y `[B, L, dim]` in the common dtype of x and the weights, and the state after the last
            token: float32 `[B, P, dim]` or `[B, P, H, K, K]` with heads, real and imaginary part,
            or P = 1 with real gates.

        Raises:
            ValueError: A shape or dtype that does not fit, naming the argument.
        """
        dim = self.time_mixing.args.hidden_size
        if x.ndim != 3 or x.shape[-1] != dim:
            raise ValueError(f"x: expected the shape [B, L, {dim}], got {list(x.shape)}")
        y, state, _ = self.time_mixing.mix(self.time_norm(x), state, mask, reverse=reverse)
        return y, state
