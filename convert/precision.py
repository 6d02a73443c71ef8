"""The precision of a model's weights: cast or quantized; state transitions stay float32."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import is_state_transition

from .plan import first


def cast(model: nn.Module, dtype: str) -> list[str]:
    """Cast all weights but the state transitions in place; return the names of those too large."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    overflown = []
    for name in list(weights):
        weight = weights.pop(name)  # one at a time: memory holds one model
        if not is_state_transition(name):
            narrow = weight.astype(getattr(mx, dtype))
            if mx.any(mx.isinf(narrow) & ~mx.isinf(weight)):
                overflown.append(name)
            model.load_weights([(name, narrow)], strict=False)
    return overflown


def quantize(model: nn.Module, bits: int, group_size: int, warn: Callable[[str], None]) -> None:
    """Quantize every layer that can be, in place; warn of the others."""
    left: dict[int, list[str]] = {}

    def can_be(name: str, module: nn.Module) -> bool:
        if not hasattr(module, "to_quantized"):
            return False
        width: int = module.weight.shape[-1]
        if width % group_size:
            left.setdefault(width, []).append(name)
        return width % group_size == 0

    nn.quantize(model, group_size=group_size, bits=bits, class_predicate=can_be)
    mx.eval(model.parameters())
    words = [
        f"{len(names)} layers of width {width} are not quantized, {width} is not divisible by "
        f"--q-group-size {group_size}: {first(names)}"
        for width, names in left.items()
    ]
    if not any(isinstance(m, nn.QuantizedLinear | nn.QuantizedEmbedding) for m in model.modules()):
        reason = words[0] if words else "it has no layers to quantize"
        raise InputError(f"-q: nothing can be quantized: {reason}")
    for warning in words:
        warn(warning)
