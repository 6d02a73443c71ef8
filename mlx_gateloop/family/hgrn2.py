"""HGRN2, gated linear RNN with state expansion (arXiv 2404.07904), of flash-linear-attention.

    a = bound + (1 - bound) sigmoid(f),   h_n = a_n h_{n-1} + (1 - a_n)^T v_n
    y_n = silu(q_n) h_n / sqrt(K)

The bound grows from layer to layer.
"""

from typing import Literal

import mlx.core as mx
import mlx.nn as nn
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError
from mlx_gateloop.family.layers import FamilyArgs, LanguageModel, Recurrent, linear, log_gate
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.layers import Cache, Mask
from mlx_gateloop.ops.pointwise import silu

NORM_EPS = 1e-5  # for the outputs' norm, whatever config.json says


@raises_input_error
@dataclass(config=STRICT)
class ModelArgs(FamilyArgs):
    """The shape of a model; the defaults are those of the published 1.3B model."""

    model_type: Literal["hgrn2"] = "hgrn2"
    expand_ratio: Count | None = 128  # channels of a head's keys; None: hidden_size / num_heads
    num_heads: Count | None = None  # None: hidden_size / expand_ratio
    use_lower_bound: bool = True  # which is learned

    def __post_init__(self) -> None:
        if self.expand_ratio is None and self.num_heads is None:
            raise InputError("expand_ratio: expected a number, or num_heads, got null")
        if self.hidden_size % self.heads or self.hidden_size % (self.expand_ratio or 1):
            expected = f"a divisor of hidden_size {self.hidden_size}"
            name = "expand_ratio" if self.expand_ratio else "num_heads"
            raise InputError(f"{name}: expected {expected}, got {getattr(self, name)}")

    @property
    def heads(self) -> int:
        if self.expand_ratio is None:
            return self.num_heads or 1
        return max(self.hidden_size // self.expand_ratio, 1)


class HGRN2Attention(Recurrent):
    """Time mixing."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        size = args.hidden_size
        self.q_proj, self.f_proj, self.i_proj = (linear(size, size) for _ in range(3))
        self.add_convolutions(q=size, f=size, i=size)
        self.g_norm = nn.RMSNorm(size, NORM_EPS)
        self.o_proj = linear(size, size)

    def __call__(
        self, x: mx.array, mask: Mask = None, cache: Cache = None, bound: mx.array | None = None
    ) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`; a >= bound."""
        q, f, v = self.q_proj(x), self.f_proj(x), self.i_proj(x)
        q, f, v = self.convolved(mask, cache, q=q, f=f, i=v)
        log_a, k = log_gate(f, bound)
        size = (self.args.heads, -1)
        q, k, v, log_a = (mx.unflatten(t, -1, size) for t in (silu(q), k.astype(v.dtype), v, log_a))
        y = self.recurrence(q * q.shape[-1] ** -0.5, k, v, log_a, mask, cache)
        return self.o_proj(self.g_norm(y.flatten(-2)))


class Model(LanguageModel):
    """A language model of HGRN2."""

    attention = HGRN2Attention
