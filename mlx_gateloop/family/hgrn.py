"""HGRN, the hierarchically gated linear RNN (arXiv 2311.04823), of flash-linear-attention.

    a = bound + (1 - bound) sigmoid(f),   h_n = a_n h_{n-1} + (1 - a_n) silu(i_n)
    y_n = RMS(h_n) silu(g_n)

The bound grows from layer to layer. A channel is a head. (OpenNLPLab's own HGRN is complex.)
"""

from typing import Literal

import mlx.core as mx
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError
from mlx_gateloop.family.layers import (
    FamilyArgs,
    GatedRMSNorm,
    LanguageModel,
    Recurrent,
    linear,
    log_gate,
)
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.layers import Cache, Mask
from mlx_gateloop.ops.pointwise import silu


@raises_input_error
@dataclass(config=STRICT)
class ModelArgs(FamilyArgs):
    """The shape of a model; the defaults are those of flash-linear-attention."""

    model_type: Literal["hgrn"] = "hgrn"
    expand_ratio: Count = 1  # channels of the recurrence over hidden_size
    use_lower_bound: bool = True  # which is learned

    def __post_init__(self) -> None:
        if self.use_lower_bound and self.expand_ratio != 1:
            raise InputError(f"expand_ratio: expected 1 with lower bounds, got {self.expand_ratio}")


class HGRNAttention(Recurrent):
    """Time mixing."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        size, width = args.hidden_size, args.hidden_size * args.expand_ratio
        self.i_proj, self.f_proj, self.g_proj = (linear(size, width) for _ in range(3))
        self.add_convolutions(i=width, f=width)
        self.g_norm = GatedRMSNorm(width, args.norm_eps)
        self.o_proj = linear(width, size)

    def __call__(
        self, x: mx.array, mask: Mask = None, cache: Cache = None, bound: mx.array | None = None
    ) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`; a >= bound."""
        i, f = self.convolved(mask, cache, i=self.i_proj(x), f=self.f_proj(x))
        log_a, k = log_gate(f, bound)
        v = silu(i)
        y = self.recurrence(mx.ones_like(v), k.astype(v.dtype), v, log_a, mask, cache)
        return self.o_proj(self.g_norm(y, self.g_proj(x)))


class Model(LanguageModel):
    """A language model of HGRN."""

    attention = HGRNAttention
