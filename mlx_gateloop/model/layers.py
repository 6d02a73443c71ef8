"""The layers of the GateLoop model (paper section 4), on activations `[batch, length, hidden]`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import GATED, LayerArgs
from mlx_gateloop.model.convolution import INPUTS, STATE, ShortConvolution, with_past
from mlx_gateloop.model.gates import Gates, Projections, input_scale, projection
from mlx_gateloop.model.linear import project
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.pointwise import gelu, layer_norm, sigmoid, silu
from mlx_gateloop.ops.relative import relative_attention
from mlx_gateloop.ops.transition import kind_of

# mlx-lm, which is untyped, makes caches, and masks other than arrays.
Cache = Any
Mask = Any
Caches = list[Cache] | None
Marks = mx.array | None  # bool `[batch, length]`
OperatorInputs = tuple[mx.array, mx.array, mx.array, Transition]
# q, k, v and a of one forward pass, and the mask of padding
Observe = Callable[[mx.array, mx.array, mx.array, Transition, mx.array | None], None]
ACTIVATE: dict[str, Callable[[mx.array], mx.array]] = {
    "identity": lambda x: x,
    "tanh": mx.tanh,
    "sigmoid": sigmoid,
}


class Starts(NamedTuple):
    """In place of a mask of padding: the documents' first tokens, where a = 0."""

    marks: mx.array


def marked(starts: mx.array, tokens: mx.array, cache: Caches) -> Starts:
    """Check the documents' first tokens, a bool array of the tokens' shape."""
    is_bool = isinstance(starts, mx.array) and starts.dtype == mx.bool_
    if not is_bool or starts.shape != tokens.shape:
        given = f"{kind_of(starts)}, shape {tuple(getattr(starts, 'shape', ()))}"
        raise InputError(f"starts: expected a bool array of shape {tokens.shape}, got {given}")
    if cache is not None:
        first = cache[0]
        left, lengths = (getattr(first, name, None) for name in ("left_padding", "lengths"))
        if (left is not None and mx.any(left > 0)) or (
            lengths is not None and mx.any(lengths < tokens.shape[1])
        ):
            raise InputError("starts: not with padding, which this cache has")
        if hasattr(first, "update_and_fetch") and first.size():
            raise InputError("starts: not with the keys of earlier tokens; use a new cache")
    return Starts(starts)


def padding_and_starts(mask: Mask) -> tuple[Marks, Marks]:
    """Return the mask of padding and the documents' first tokens; None if there are none."""
    if isinstance(mask, tuple):  # `mx.checkpoint` makes it a plain one
        return None, mask[0]
    return (mask if isinstance(mask, mx.array) else None), None


class TimeMixing(Gates):
    """The GateLoop operator with content-aware inputs (paper section 4), for residual streams.

        q, k, v = Linear(x),   a = sigmoid(gamma) exp(i theta),   y = Re(q h)

    `LayerArgs` explains the variants.
    """

    operator: Callable[..., Any] | None = None  # in place of `gate_loop`, see `ops.over_ranks`
    observe: Observe | None = None  # called at each forward pass, see `watch`

    def __init__(self, args: LayerArgs) -> None:
        super().__init__(args)
        size, width = args.hidden_size, args.width
        bias = args.bias if args.projection_bias is None else args.projection_bias
        if args.conv_size is not None:
            self.conv1d = ShortConvolution(size, args.conv_size)
        if args.query == "linear":
            self.q_proj = projection(nn.Linear, size, width, bias)
        else:
            self.query = mx.random.normal((width,))  # distributed as the projection's outputs
        if args.input_gate in ("linear", "sigmoid"):
            self.k_proj = projection(nn.Linear, size, width, bias)
        self.v_proj = projection(nn.Linear, size, width, bias)
        self.add_transition()
        if args.longest_half_life is not None and args.transition in GATED:
            scale = self.spread_transitions(args.longest_half_life)
            if not args.input_scale and args.input_gate != "tied":
                scaled = self.k_proj if args.input_gate == "linear" else self.v_proj
                scaled.weight *= scale[:, None]  # with heads, the transitions are of k's channels
        if args.sub_norm:
            normed = width // args.heads if args.sub_norm == "head" else width
            self.sub_norm = LayerNorm(normed, args.layer_norm_eps)
        if args.output_gate:
            self.gate_proj = projection(nn.Linear, size, width, bias)
        if args.projects_output:
            self.out_proj = projection(nn.Linear, width, size, bias)

    def __call__(self, x: mx.array, mask: Mask = None, cache: Cache = None) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`.

        `mask` `[B, L]` is False for padding, or `Starts`; other values (AWQ's "causal") are none.
        """
        mask, starts = padding_and_starts(mask)
        read = last = None  # by the convolution
        if self.args.conv_size is not None:
            window, document, last = with_past(x, self.args.conv_size, mask, starts, cache)
            read, x = (x, starts), self.conv1d(window, document)
        y, state, inputs = self.mix(x, None if cache is None else cache[STATE], mask, starts)
        if self.operator is None and hasattr(cache, "update"):
            cache.update(state, *inputs[1:], mask, read)
        elif cache is not None:
            cache[STATE] = state
        if cache is not None and last is not None:
            cache[INPUTS] = last
        return y

    def mix(
        self,
        x: mx.array,
        state: mx.array | None,
        mask: Marks = None,
        starts: Marks = None,
        reverse: bool = False,
    ) -> tuple[mx.array, mx.array, OperatorInputs]:
        """Compute the output, the state after the last token, and what the operator read."""
        args, projections = self.args, self.project(x)
        q, key, v, transition = self._inputs(x, projections)
        if starts is not None:
            transition = transition.reset(starts)
        if self.observe is not None:
            self.observe(q, key, v, transition, mask)
        reads_state = args.state_activation != "identity"
        y, state = (self.operator or gate_loop)(
            mx.ones_like(q) if reads_state else q,
            key,
            v,
            transition,
            state,
            mask=mask,
            reverse=reverse,
            # With a = 1 errors never decay; a tree of sums accumulates fewer than a loop.
            backend="mlx" if args.ablation == "transition" else "auto",
        )
        if reads_state:
            y = q * ACTIVATE[args.state_activation](y)
        return self._output(projections, y), state, (q, key, v, transition)

    def _inputs(self, x: mx.array, projections: Projections) -> OperatorInputs:
        if "q_proj" in projections:
            q = projections["q_proj"]
        else:
            q = mx.broadcast_to(self.query, (*x.shape[:2], self.args.width)).astype(x.dtype)
        q = self._heads(ACTIVATE[self.args.query_activation](q))
        v = self._heads(ACTIVATE[self.args.value_activation](projections["v_proj"]))
        transition = self.transition(x, projections)
        return q, self._key(projections, v, transition), v, transition

    def _output(self, projections: Projections, y: mx.array) -> mx.array:
        if self.args.sub_norm == "head":
            y = self.sub_norm(y)
        y = y.reshape(*y.shape[:2], self.args.width)  # [B, L, heads, V] -> [B, L, D]
        if self.args.sub_norm is True:
            y = self.sub_norm(y)
        if "gate_proj" in projections:
            y = y * silu(projections["gate_proj"])
        return project(y, self.out_proj)[0] if "out_proj" in self else y

    def _key(self, projections: Projections, v: mx.array, transition: Transition) -> mx.array:
        if self.args.input_gate == "tied":
            key = sigmoid(-transition.first).astype(v.dtype)  # 1 - |a| without cancellation
            return mx.broadcast_to(key, v.shape)
        key = mx.ones_like(v)
        if "k_proj" in projections:
            key = projections["k_proj"]
            key = self._heads(sigmoid(key) if self.args.input_gate == "sigmoid" else key)
        if self.args.input_scale:
            key = key * input_scale(transition.first).astype(key.dtype)
        factor = self.constant.input_factor() if "constant" in self else None
        return key if factor is None else key * self._heads(factor).astype(key.dtype)


class SoftmaxMixing(TimeMixing):
    """Softmax attention whose relative positions are the transitions (paper section 3.4).

        y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n) / sqrt(K)) v_m   over m <= n

    Transition "none", a = 1, is plain causal attention, with rotary positions if there is a
    `rope_theta`. The division by sqrt(K), with K channels per head, is from Vaswani et al. (arXiv
    1706.03762); the paper leaves it to the weights.
    """

    def __call__(self, x: mx.array, mask: Mask = None, cache: Cache = None) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`.

        `mask` is that of mlx-lm's caches, bool `[batch, heads, length, keys]`, or `Starts` without
        a cache; other values are causal. The keys in mlx-lm's `cache` include the logarithms of the
        transitions.
        """
        projections = self.project(x)
        q, key, v, transition = self._inputs(x, projections)
        mask, starts = padding_and_starts(mask)
        if self.observe is not None:
            watched = transition if starts is None else transition.reset(starts)
            self.observe(q, key, v, watched, None)
        log = () if self.args.transition == "none" else transition.logarithm()
        keys = mx.concatenate([key, *log], -1).swapaxes(1, 2)  # [B, L, H, K] -> [B, H, L, K]
        q, v = q.swapaxes(1, 2), v.swapaxes(1, 2)
        if (base := self.args.rope_theta) is not None:
            first = 0 if cache is None else cache.offset
            q, keys = (
                mx.fast.rope(x, x.shape[-1], traditional=False, base=base, scale=1.0, offset=first)
                for x in (q, keys)
            )
        if cache is not None:
            keys, v = cache.update_and_fetch(keys, v)
            if not isinstance(keys, mx.array):
                raise InputError("kv_bits: softmax mixing takes no quantized cache; leave it out")
        if starts is not None:  # a token sees those of its own document
            number = mx.cumsum(starts.astype(mx.int32), axis=1)[:, None]
            causal = mx.tri(x.shape[1], dtype=mx.bool_)
            mask = (number[..., None] == number[..., None, :]) & causal
        y = relative_attention(q * q.shape[-1] ** -0.5, keys, v, len(log), mask)
        return self._output(projections, y.swapaxes(1, 2))

    def _heads(self, x: mx.array) -> mx.array:
        return mx.unflatten(x, -1, (self.args.heads, -1))


class LayerNorm(nn.LayerNorm):
    """MLX's layer norm with weight and bias; on a CPU the extension computes it."""

    def __call__(self, x: mx.array) -> mx.array:
        return layer_norm(x, self.weight, self.bias, self.eps)


def make_norm(args: LayerArgs) -> nn.Module:
    """Make a norm of the model's kind; the default epsilon is that of F.normalize, squared."""
    if args.norm == "rms":
        eps = 1e-24 / args.hidden_size if args.rms_norm_eps is None else args.rms_norm_eps
        return nn.RMSNorm(args.hidden_size, eps)
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
        (y,) = project(x, self.up_proj)
        return project(self.activate(y), self.down_proj)[0]


class Block(nn.Module):
    """x + time_mixing(norm(x)), then x + channel_mixing(norm(x)); "post" norms each sum instead."""

    def __init__(self, args: LayerArgs) -> None:
        super().__init__()
        self.is_post = args.norm_position == "post"
        self.time_norm = make_norm(args)
        self.time_mixing = (SoftmaxMixing if args.mixer == "softmax" else TimeMixing)(args)
        self.channel_norm = make_norm(args)
        self.channel_mixing = ChannelMixing(args)
        self.dropout = nn.Dropout(args.dropout)

    def __call__(self, x: mx.array, mask: Mask = None, cache: Cache = None) -> mx.array:
        if self.is_post:
            x = self.time_norm(x + self.dropout(self.time_mixing(x, mask, cache)))
            x = self.channel_norm(x + self.dropout(self.channel_mixing(x)))
        else:
            x = x + self.dropout(self.time_mixing(self.time_norm(x), mask, cache))
            x = x + self.dropout(self.channel_mixing(self.channel_norm(x)))
        return x


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off in the `with` block."""
    modes = [(module, module.training) for module in model.modules()]  # parents first
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.train(mode)
