"""Mamba-2's layer, SSD (arXiv 2405.21060), in blocks with SwiGLU; for comparisons.

    dt = softplus(W x + b),   a = exp(-dt exp(A)),   h_n = a_n h_{n-1} + k_n^T (dt_n v_n)
    y_n = q_n h_n + D v_n

Each head has one transition, and all heads share queries and keys. mlx-lm has Mamba-2 itself, which
has no SwiGLU; the layers compute the same but for the bias of its convolution.
"""

from collections.abc import Callable
from math import log
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import raises_input_error
from mlx_gateloop.errors import InputError
from mlx_gateloop.family.layers import FamilyArgs, LanguageModel, Recurrent, linear
from mlx_gateloop.model.arguments import STRICT, Count
from mlx_gateloop.model.layers import Cache, Mask
from mlx_gateloop.ops.pointwise import silu

# The start of the published code: dt log-uniform between these, exp(A) uniform between those.
STEPS, RATES = (0.001, 0.1), (1.0, 16.0)


@raises_input_error
@dataclass(config=STRICT)
class ModelArgs(FamilyArgs):
    """The shape of a model; the layers' widths are those of the published models."""

    model_type: Literal["ssd"] = "ssd"
    use_short_conv: bool = True
    num_heads: Count = 32
    state_width: Count = 64  # channels of the keys
    expand: Count = 2  # width of the values over hidden_size

    def __post_init__(self) -> None:
        if self.inner_width % self.num_heads:
            expected = f"a divisor of {self.inner_width}, hidden_size times expand"
            raise InputError(f"num_heads: expected {expected}, got {self.num_heads}")

    @property
    def inner_width(self) -> int:
        return self.expand * self.hidden_size


class SSD(Recurrent):
    """Time mixing."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args)
        size, inner, heads = args.hidden_size, args.inner_width, args.num_heads
        self.z_proj, self.v_proj = linear(size, inner), linear(size, inner)
        self.k_proj, self.q_proj = (linear(size, args.state_width) for _ in range(2))
        self.dt_proj = linear(size, heads)
        self.add_convolutions(v=inner, k=args.state_width, q=args.state_width)
        dt = mx.exp(mx.random.uniform(log(STEPS[0]), log(STEPS[1]), (heads,)))
        self.dt_bias = dt + mx.log(-mx.expm1(-dt))  # softplus of it is dt
        self.A_log = mx.log(mx.random.uniform(*RATES, (heads,)))
        self.D = mx.ones(heads)
        self.norm = nn.RMSNorm(inner, args.norm_eps)
        self.o_proj = linear(inner, size)

    def __call__(self, x: mx.array, mask: Mask = None, cache: Cache = None) -> mx.array:
        """Compute the addition to the residual stream of x `[B, L, hidden]`; mask `[B, L]`."""
        heads = self.args.num_heads
        v, k, q = self.v_proj(x), self.k_proj(x), self.q_proj(x)
        v, k, q = map(silu, self.convolved(mask, cache, v=v, k=k, q=q))
        v = mx.unflatten(v, -1, (heads, -1))
        k, q = (mx.repeat(t[:, :, None], heads, 2) for t in (k, q))  # [B, L, heads, keys]
        dt = nn.softplus(self.dt_proj(x).astype(mx.float32) + self.dt_bias)[..., None]
        log_a = -dt * mx.exp(self.A_log)[:, None]
        y = self.recurrence(q, k, dt.astype(v.dtype) * v, log_a, mask, cache)
        y = (y + self.D[:, None] * v).flatten(-2)
        return self.o_proj(self.norm(y * silu(self.z_proj(x))))


class Model(LanguageModel):
    """A language model of Mamba-2's layers and SwiGLU."""

    attention = SSD

    @property
    def cast_predicate(self) -> Callable[[str], bool]:
        """Predicate of weights that may be cast: all but the transitions', as in `lm.Model`."""
        return lambda path: not path.endswith(("A_log", "dt_bias"))
