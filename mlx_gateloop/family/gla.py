"""GLA, gated linear attention (arXiv 2312.06635), of flash-linear-attention.

    a = sigmoid(W2 W1 x + b)^(1/16),   h_n = a_n h_{n-1} + k_n^T v_n,   y_n = q_n h_n / sqrt(K)

Parameters of this package have the names of flash-linear-attention, so its checkpoints load.
"""

from typing import Literal

import mlx.core as mx
import mlx.nn as nn
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError
from mlx_gateloop.family.layers import FamilyArgs, GatedRMSNorm, LanguageModel, Recurrent, linear
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.layers import Cache, Mask
from mlx_gateloop.ops.pointwise import silu

RANK, DIVISOR = 16, 16  # the gate projection's rank; the gate's logarithm is divided by 16


@raises_input_error
@dataclass(config=STRICT)
class ModelArgs(FamilyArgs):
    """The shape of a model; the defaults are those of the published 1.3B model."""

    model_type: Literal["gla"] = "gla"
    num_heads: Count = 4
    num_kv_heads: Count | None = None  # heads of keys, values and gates; queries share them
    expand_k: float = 0.5  # width of the queries over hidden_size
    expand_v: float = 1.0  # width of the outputs over hidden_size
    feature_map: None = None  # for queries and keys; only None is supported
    use_output_gate: bool = True  # multiply the output by silu(Linear(x))
    clamp_min: float | None = None  # least log a

    def __post_init__(self) -> None:
        for name in ("expand_k", "expand_v"):
            width = self.hidden_size * getattr(self, name)
            if width <= 0 or width % self.num_heads:
                expected = f"a multiple of num_heads {self.num_heads} over hidden_size"
                raise InputError(f"{name}: expected {expected}, got {getattr(self, name)}")
        if self.num_heads % self.kv_heads:
            expected = f"a divisor of num_heads {self.num_heads}"
            raise InputError(f"num_kv_heads: expected {expected}, got {self.kv_heads}")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads


class GatedLinearAttention(Recurrent):
    """Time mixing."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        size, heads, groups = args.hidden_size, args.num_heads, args.kv_heads
        key, value = (round(size * expand) // heads for expand in (args.expand_k, args.expand_v))
        self.q_proj = linear(size, heads * key)
        self.k_proj = linear(size, groups * key)
        self.v_proj = linear(size, groups * value)
        self.gk_proj = [linear(size, RANK), linear(RANK, groups * key, bias=True)]
        self.add_convolutions(q=heads * key, k=groups * key, v=groups * value)
        if args.use_output_gate:
            self.g_proj = linear(size, heads * value)
        self.g_norm = GatedRMSNorm(value, args.norm_eps)
        self.o_proj = linear(heads * value, size)

    def __call__(self, x: mx.array, mask: Mask = None, cache: Cache = None) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`; mask `[B, L]`."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.args.use_short_conv:
            q, k, v = map(silu, self.convolved(mask, cache, q=q, k=k, v=v))
        low_rank, up = self.gk_proj
        log_a = nn.log_sigmoid(up(low_rank(x)).astype(mx.float32)) / DIVISOR
        if self.args.clamp_min is not None:
            log_a = mx.maximum(log_a, self.args.clamp_min)
        q = mx.unflatten(q, -1, (self.args.num_heads, -1))
        k, v, log_a = map(self._heads, (k, v, log_a))
        y = self.recurrence(q * q.shape[-1] ** -0.5, k, v, log_a, mask, cache)
        gate = self.g_proj(x).reshape(y.shape) if self.args.use_output_gate else None
        return self.o_proj(self.g_norm(y, gate).flatten(-2))

    def _heads(self, x: mx.array) -> mx.array:
        """Split `[B, L, D]` into heads, each repeated for the queries of its group."""
        x = mx.unflatten(x, -1, (self.args.kv_heads, -1))
        groups = self.args.num_heads // self.args.kv_heads
        return x if groups == 1 else mx.repeat(x, groups, 2)


class Model(LanguageModel):
    """A GLA language model."""

    attention = GatedLinearAttention
