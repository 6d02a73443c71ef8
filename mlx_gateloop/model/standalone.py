"""GateLoop (https://arxiv.org/abs/2311.01927): the whole language model in one file.

    h_n = a_n h_{n-1} + k_n^T v_n,   y_n = Re(q_n h_n),   a_n = sigmoid(gamma_n) exp(i theta_n)

An associative scan reads a text in parallel; generation takes one step per token from a state of
constant size. On MLX and mlx-lm alone, so `mlx_lm.generate --trust-remote-code` runs it from a
model's directory. The mlx-gateloop package adds fast kernels, training and other options.

Shapes: B batch, L length, H heads of K channels each. Complex numbers of MLX are slow, so axis 1 of
transitions and states holds P parts: real and imaginary, or real alone if the gates are real.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs, create_ssm_mask
from mlx_lm.models.cache import ArraysCache

Pair = tuple[mx.array, mx.array]
CHUNK = 128  # tokens in one parallel scan: bounds its memory


@dataclass
class ModelArgs(BaseModelArgs):
    """The shape of a model; the defaults are the paper's for WikiText-103."""

    model_type: str = "gateloop"
    vocab_size: int = 50257
    hidden_size: int = 624
    intermediate_size: int = 1872
    num_hidden_layers: int = 12
    num_heads: int | None = None  # None: a head per channel, "max-headed" in the paper
    transition: str = "data_controlled"  # or "fixed": learned, the same for every token
    gate: str = "polar"  # "polar_abs": |a| = sigmoid(|z|), z = gamma + i theta; "real": no theta
    input_scale: bool = False  # multiplies k_n by sqrt(1 - |a_n|^2)
    conv_size: int | None = None  # tokens that a convolution before the projections reads
    output_gate: bool = False  # multiplies y by SiLU(Linear(x))
    output_projection: bool | None = None  # None: with an output gate
    norm: str = "layer"  # or "rms", "none"
    norm_position: str = "pre"  # or "post": after the skip connection
    final_norm: bool = True
    tie_word_embeddings: bool = False
    bias: bool = True
    num_outputs: int | None = None  # None: vocab_size
    head_bias: bool | None = None  # None: bias
    layer_norm_eps: float = 1e-5


def multiply(a: mx.array, b: mx.array) -> mx.array:
    """The product of numbers whose parts lie on axis 1."""
    if a.shape[1] == 1:
        return a * b
    (a_re, a_im), (b_re, b_im) = mx.split(a, 2, axis=1), mx.split(b, 2, axis=1)
    return mx.concatenate([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], axis=1)


def scan(a: mx.array, x: mx.array) -> Pair:
    """Combine, for each n, the steps h -> a h + x up to n along axis 2, in O(log L) rounds.

    Two steps make one: (a_1, x_1) then (a_2, x_2) is (a_1 a_2, a_2 x_1 + x_2) (paper, eq. 13). Each
    round combines every step with the one `reach` before it (Hillis and Steele, 1986).
    """
    reach = 1
    while reach < a.shape[2]:
        late = a[:, :, reach:]
        combined = multiply(late, x[:, :, :-reach]) + x[:, :, reach:]
        x = mx.concatenate([x[:, :, :reach], combined], axis=2)
        a = mx.concatenate([a[:, :, :reach], multiply(a[:, :, :-reach], late)], axis=2)
        reach *= 2
    return a, x


def gate_loop_update(q: mx.array, k: mx.array, v: mx.array, a: mx.array, h: mx.array) -> Pair:
    """Apply the recurrence to L tokens, in float32; return y and the state after the last one.

    q, k, v and y are `[B, L, H, K]`, a is `[B, P, L, H, K]` and the state h `[B, P, H, K, K]`.
    """
    outputs = []
    for start in range(0, q.shape[1], CHUNK):
        chunk = slice(start, start + CHUNK)
        x = k[:, None, chunk, :, :, None] * v[:, None, chunk, :, None, :]  # k^T v, which is real
        if a.shape[1] == 2:
            x = mx.concatenate([x, mx.zeros_like(x)], axis=1)
        gates, x = scan(a[:, :, chunk, ..., None], x)
        states = multiply(gates, h[:, :, None]) + x
        outputs.append((q[:, chunk, :, :, None] * states[:, 0]).sum(axis=-2))
        h = states[:, :, -1]
    return mx.concatenate(outputs, axis=1), h


class ShortConvolution(nn.Module):
    """A causal convolution over few tokens, one filter a channel; the weight is PyTorch's."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = mx.random.uniform(-(size**-0.5), size**-0.5, (channels, 1, size))

    def __call__(
        self, x: mx.array, mask: mx.array | None = None, cache: ArraysCache | None = None
    ) -> mx.array:
        """Convolve x `[B, L, channels]`; the cache's second entry holds the inputs before it."""
        B, L, channels = x.shape
        size = self.weight.shape[-1]
        if mask is not None:
            x = mx.where(mask[..., None], x, 0)
        past = None if cache is None else cache[1]
        past = mx.zeros((B, size - 1, channels)) if past is None else past
        x = mx.concatenate([past.astype(x.dtype), x], axis=1)
        if cache is not None:
            end = mx.full(B, L) if cache.lengths is None else mx.clip(cache.lengths, 0, L)
            last = end[:, None] + mx.arange(size - 1)  # what comes after is padding
            cache[1] = mx.take_along_axis(x, last[..., None], axis=1)
        taps = [x[:, i : i + L] * self.weight[:, 0, i] for i in range(size)]
        return sum(taps[1:], taps[0])


class TransitionLinear(nn.Linear):
    """A linear layer that no quantizer takes: an error of a_n grows with the length."""

    @property
    def to_quantized(self) -> Any:
        raise AttributeError("state transitions are not quantized")


class TimeMixing(nn.Module):
    """The recurrence with queries, keys, values and transitions that are projections of x."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size = args.hidden_size
        self.heads = args.num_heads or size
        self.gate, self.input_scale = args.gate, args.input_scale
        if args.conv_size is not None:
            self.conv1d = ShortConvolution(size, args.conv_size)
        for name in ("q", "k", "v", "gate") if args.output_gate else ("q", "k", "v"):
            self[f"{name}_proj"] = nn.Linear(size, size, bias=args.bias)
        for name in ("gamma",) if args.gate == "real" else ("gamma", "theta"):
            if args.transition == "fixed":
                self[name] = mx.random.normal((size,))
            else:
                self[f"{name}_proj"] = TransitionLinear(size, size, bias=args.bias)
        if args.output_gate if args.output_projection is None else args.output_projection:
            self.out_proj = nn.Linear(size, size, bias=args.bias)

    def __call__(self, x: mx.array, cache: ArraysCache | None = None) -> mx.array:
        """Compute `[B, L, hidden_size]` from x of the same shape; the cache holds the state."""
        B, L, size = x.shape
        mask = create_ssm_mask(x, cache)  # False for padding, which leaves the state alone
        if "conv1d" in self:
            x = self.conv1d(x, mask, cache)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        gamma, a = self.transitions(x)
        if self.input_scale:  # of 1 - |a|: no cancellation where |a| nears 1
            rest = mx.sigmoid(-mx.minimum(gamma, 85))
            k = k * mx.sqrt(rest * (2 - rest))
        if mask is not None:
            one = mx.array([1.0, 0.0])[: a.shape[1], None, None]
            a = mx.where(mask[:, None, :, None], a, one)
            v = mx.where(mask[..., None], v, 0)
        heads = (self.heads, size // self.heads)
        q, k, v, a = (mx.unflatten(z.astype(mx.float32), -1, heads) for z in (q, k, v, a))
        state = (B, a.shape[1], *heads, heads[1])
        h = None if cache is None else cache[0]
        y, h = gate_loop_update(q, k, v, a, mx.zeros(state) if h is None else h.reshape(state))
        if cache is not None:
            cache[0] = h.reshape(B, -1, size) if self.heads == size else h
            cache.advance(L)
        y = y.reshape(x.shape).astype(x.dtype)
        if "gate_proj" in self:
            y = y * nn.silu(self.gate_proj(x))
        return self.out_proj(y) if "out_proj" in self else y

    def transitions(self, x: mx.array) -> Pair:
        """Compute gamma_n and a_n, float32 `[B, L, hidden_size]` and `[B, P, L, hidden_size]`."""
        x = x.astype(mx.float32)
        gamma, *theta = (
            mx.broadcast_to(self[name], x.shape) if name in self else self[f"{name}_proj"](x)
            for name in (("gamma",) if self.gate == "real" else ("gamma", "theta"))
        )
        if not theta:
            return gamma, mx.sigmoid(gamma)[:, None]
        (phase,) = theta
        if self.gate == "polar_abs":  # |z| and arg z have no gradient at z = 0
            square = gamma**2 + phase**2
            at_zero = square == 0
            phase = mx.arctan2(mx.where(at_zero, 0, phase), mx.where(at_zero, 1, gamma))
            gamma = mx.where(at_zero, 0, mx.sqrt(mx.where(at_zero, 1, square)))
        magnitude = mx.sigmoid(gamma)
        return gamma, mx.stack([magnitude * mx.cos(phase), magnitude * mx.sin(phase)], axis=1)


class ChannelMixing(nn.Module):
    """A feed-forward network of each token."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.up_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=args.bias)
        self.down_proj = nn.Linear(args.intermediate_size, args.hidden_size, bias=args.bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.gelu(self.up_proj(x)))


def make_norm(args: ModelArgs) -> nn.Module:
    size = args.hidden_size
    if args.norm == "layer":
        return nn.LayerNorm(size, eps=args.layer_norm_eps)
    return nn.RMSNorm(size, eps=1e-24 / size) if args.norm == "rms" else nn.Identity()


class Block(nn.Module):
    """Time mixing and channel mixing, each with a norm and a skip connection."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.is_post = args.norm_position == "post"
        self.time_norm = make_norm(args)
        self.time_mixing = TimeMixing(args)
        self.channel_norm = make_norm(args)
        self.channel_mixing = ChannelMixing(args)

    def __call__(self, x: mx.array, cache: ArraysCache | None = None) -> mx.array:
        if self.is_post:
            x = self.time_norm(x + self.time_mixing(x, cache))
            return self.channel_norm(x + self.channel_mixing(x))
        x = x + self.time_mixing(self.time_norm(x), cache)
        return x + self.channel_mixing(self.channel_norm(x))


class GateLoopModel(nn.Module):
    """The embedding, the blocks and the final norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = make_norm(args) if args.final_norm else nn.Identity()

    def __call__(self, tokens: mx.array, cache: list[ArraysCache] | None = None) -> mx.array:
        x = self.embed_tokens(tokens)
        for layer, c in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x = layer(x, c)
        return self.norm(x)


class Model(nn.Module):
    """The language model in mlx-lm's conventions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args, self.model_type = args, args.model_type
        self.model = GateLoopModel(args)
        if not args.tie_word_embeddings:
            bias = args.bias if args.head_bias is None else args.head_bias
            outputs = args.num_outputs or args.vocab_size
            self.lm_head = nn.Linear(args.hidden_size, outputs, bias=bias)

    def __call__(self, tokens: mx.array, cache: list[ArraysCache] | None = None) -> mx.array:
        head = self.model.embed_tokens.as_linear if self.args.tie_word_embeddings else self.lm_head
        return head(self.model(tokens, cache))

    @property
    def layers(self) -> list[Block]:
        return self.model.layers

    def make_cache(self) -> list[ArraysCache]:
        return [ArraysCache(size=1 if self.args.conv_size is None else 2) for _ in self.layers]

    @property
    def cast_predicate(self) -> Callable[[str], bool]:
        """Tell which weights may be cast: all but those of the transitions, which stay float32."""
        return lambda path: not any(f".{name}" in path for name in ("gamma", "theta"))

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        if self.args.tie_word_embeddings:
            weights = {k: w for k, w in weights.items() if not k.startswith("lm_head.")}
        may_cast = self.cast_predicate
        return {k: w if may_cast(k) else w.astype(mx.float32) for k, w in weights.items()}
