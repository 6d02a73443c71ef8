"""Parts that the models share; parameters have flash-linear-attention's names and shapes."""

from collections.abc import Callable
from dataclasses import fields
from itertools import accumulate
from typing import Any, ClassVar, Literal, TypeVar

import mlx.core as mx
import mlx.nn as nn
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.convolution import INPUTS, STATE, ShortConvolution, with_past
from mlx_gateloop.model.gates import projection
from mlx_gateloop.model.layers import Cache, Caches, Marks, Mask, marked, padding_and_starts
from mlx_gateloop.model.lm import advance, padding_mask
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.pointwise import sigmoid, silu

Args = TypeVar("Args", bound="FamilyArgs")


@raises_input_error
@dataclass(config=STRICT)
class FamilyArgs:
    """The keys of config.json that all models have. A value without a choice is the only one."""

    model_type: str
    vocab_size: Count = 32000
    hidden_size: Count = 2048
    num_hidden_layers: Count = 24
    hidden_ratio: Count | None = 4  # makes the inner width if there is no intermediate_size
    intermediate_size: Count | None = None  # inner width of SwiGLU
    hidden_act: Literal["swish", "silu"] = "swish"  # in SwiGLU and of the output gate
    use_short_conv: bool = False  # a short convolution follows the projections
    conv_size: Count = 4  # its length
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attn: None = None  # attention layers between recurrent layers
    attnres_block_size: None = None  # attention over the outputs of earlier layers

    # What training asks of the arguments of any model.
    dropout: ClassVar[float] = 0.0
    can_spread: ClassVar[bool] = False

    @property
    def mixer(self) -> str:
        return self.model_type

    @property
    def outputs(self) -> int:
        return self.vocab_size

    @property
    def inner_size(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        width = self.hidden_size * (self.hidden_ratio or 4) * 2 // 3
        return -(-width // 256) * 256

    @classmethod
    def from_dict(cls: type[Args], config: dict[str, Any]) -> Args:
        """Read the arguments from a config.json; its other keys change no output."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in config.items() if key in known})


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """Make a Linear with normal weights of variance 1 / inputs."""
    return projection(nn.Linear, inputs, outputs, bias)


class SwiGLU(nn.Module):
    """The feed-forward network: down(silu(gate(x)) up(x))."""

    def __init__(self, args: FamilyArgs) -> None:
        super().__init__()
        width, inner = args.hidden_size, args.inner_size
        self.gate_proj, self.up_proj = linear(width, inner), linear(width, inner)
        self.down_proj = linear(inner, width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class GatedRMSNorm(nn.RMSNorm):
    """RMS norm of the last axis, times silu(gate) if there is a gate."""

    def __call__(self, x: mx.array, gate: mx.array | None = None) -> mx.array:
        y: mx.array = super().__call__(x)
        return y if gate is None else y * silu(gate)


def log_gate(f: mx.array, lower_bound: mx.array | None) -> tuple[mx.array, mx.array]:
    """Compute float32 log a and 1 - a of a = bound + (1 - bound) sigmoid(f); no bound is 0."""
    f = f.astype(mx.float32)
    log_a, rest = nn.log_sigmoid(f), sigmoid(-f)  # 1 - a without cancellation
    if lower_bound is None:
        return log_a, rest
    log_a = mx.logaddexp(mx.log(lower_bound), mx.log1p(-lower_bound) + log_a)
    return log_a, (1 - lower_bound) * rest


def lower_bounds(weight: mx.array) -> list[mx.array | None]:
    """Compute the lower bound of each layer's gates: cumulative, and none in the first."""
    shares = mx.softmax(weight.astype(mx.float32), 0)
    sums = mx.cumsum(shares, 0) - shares[0]
    return [None, *mx.clip(sums, 2**-126, 1 - 2**-24)[1:]]  # rounded to 0 or 1 they have no logs


def gate_loop_update(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_a: mx.array,
    state: mx.array | None,
    mask: Mask = None,
) -> tuple[mx.array, mx.array]:
    """Return y_n = q_n h_n and the last state of h_n = a_n h_{n-1} + k_n^T v_n, for `gl.watch`."""
    mask, starts = padding_and_starts(mask)
    a = Transition.polar(log_a)
    return gate_loop(q, k, v, a if starts is None else a.reset(starts), state, mask=mask)


class Recurrent(nn.Module):
    """Base of the layers that mix tokens."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.args = args

    def add_convolutions(self, **widths: int) -> None:
        """Make a `ShortConvolution` called q_conv1d for the input q, if the model has them."""
        for name, width in widths.items() if self.args.use_short_conv else ():
            self[f"{name}_conv1d"] = ShortConvolution(width, self.args.conv_size)

    def convolved(self, mask: Mask, cache: Cache, **inputs: mx.array) -> list[mx.array]:
        """Apply each input's convolution, if the model has them; padding counts as zero."""
        if not self.args.use_short_conv:
            return [*inputs.values()]
        x, marks = mx.concatenate([*inputs.values()], -1), padding_and_starts(mask)
        x, document, last = with_past(x, self.args.conv_size, *marks, cache)
        if cache is not None:
            cache[INPUTS] = last
        *ends, _ = accumulate(part.shape[-1] for part in inputs.values())
        parts = zip(inputs, mx.split(x, ends, -1), strict=True)
        return [self[f"{name}_conv1d"](part, document) for name, part in parts]

    def recurrence(
        self, q: mx.array, k: mx.array, v: mx.array, log_a: mx.array, mask: Mask, cache: Cache
    ) -> mx.array:
        """Apply `gate_loop_update` from the cache's state."""
        state = None if cache is None else cache[STATE]
        y, state = gate_loop_update(q, k, v, log_a, state, mask)
        if cache is not None:
            cache[STATE] = state
        return y


class Block(nn.Module):
    """x + attn(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, args: Any, attention: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(args.hidden_size, args.norm_eps)
        self.attn = attention(args)
        self.mlp_norm = nn.RMSNorm(args.hidden_size, args.norm_eps)
        self.mlp = SwiGLU(args)

    def __call__(self, x: mx.array, *context: Any) -> mx.array:
        x = x + self.attn(self.attn_norm(x), *context)
        return x + self.mlp(self.mlp_norm(x))


class Body(nn.Module):
    """The embedding, the blocks and the final norm."""

    def __init__(self, args: Any, attention: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(args.vocab_size, args.hidden_size)
        if getattr(args, "use_lower_bound", False):
            self.lower_bounds = mx.zeros((args.num_hidden_layers, args.hidden_size))
        self.layers = [Block(args, attention) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, args.norm_eps)
        self.recomputes_blocks = False  # training stores a block's input alone if it is set

    def __call__(self, tokens: mx.array, cache: Caches, starts: Marks) -> mx.array:
        x = self.embeddings(tokens)
        padding = None if cache is None else padding_mask(cache[0], tokens.shape[1])
        mask: Mask = padding if starts is None else marked(starts, tokens, cache)
        recomputes = self.recomputes_blocks and cache is None  # a cache would lose its gradient
        none = [None] * len(self.layers)
        bounds = lower_bounds(self.lower_bounds) if "lower_bounds" in self else none
        for layer, layer_cache, bound in zip(self.layers, cache or none, bounds, strict=True):
            block = nn.utils.checkpoint(layer) if recomputes else layer
            context = (mask, layer_cache) if bound is None else (mask, layer_cache, bound)
            x = block(x, *context)
        if cache is not None and padding is not None:
            advance(cache, tokens.shape[1])
        return self.norm(x)


class LanguageModel(nn.Module):
    """A model with its head, and the methods that mlx-lm needs; subclasses name the mixing."""

    attention: Callable[[Any], nn.Module]

    def __init__(self, args: FamilyArgs) -> None:
        super().__init__()
        self.args, self.model_type = args, args.model_type
        self.model = Body(args, type(self).attention)
        if not args.tie_word_embeddings:
            self.lm_head = linear(args.hidden_size, args.vocab_size)

    def __call__(self, tokens: mx.array, cache: Caches = None, starts: Marks = None) -> mx.array:
        """Compute the logits `[batch, length, vocab_size]` of the next tokens, as in `lm.Model`."""
        head = self.model.embeddings.as_linear if self.args.tie_word_embeddings else self.lm_head
        return head(self.model(tokens, cache, starts))

    @property
    def layers(self) -> list[Any]:
        return self.model.layers

    def make_cache(self) -> list[Cache]:
        """Make one mlx-lm cache per layer: a float32 state, and the inputs of a convolution."""
        from mlx_lm.models.cache import ArraysCache

        return [ArraysCache(size=1 + self.args.use_short_conv) for _ in self.layers]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Give weights of any version of flash-linear-attention the newest names."""
        result = {}
        for name, weight in weights.items():
            name = name.replace("g_norm_swish_gate", "g_norm")
            if name.endswith("mlp.gate_proj.weight") and len(weight) == 2 * self.args.inner_size:
                result[name], weight = mx.split(weight, 2)
                name = name.replace("gate_proj", "up_proj")
            if not (self.args.tie_word_embeddings and name == "lm_head.weight"):
                result[name] = weight
        return result
