"""GateLoop on MLX: linear recurrence whose state transition is controlled by the data.

The operator and its transition are imported at once; the language model, which needs mlx-lm and
transformers, at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlx_gateloop import _register

_register.install()  # first: it prepares MLX's BLAS before MLX is imported

from mlx_gateloop.ops import (  # noqa: E402
    Transition,
    convolve,
    gate_loop,
    gate_loop_softmax,
    linear_scan,
)

if TYPE_CHECKING:
    from mlx_gateloop import watch
    from mlx_gateloop.io import load, save
    from mlx_gateloop.model.lm import Model, ModelArgs

__version__ = "0.1.0"
__all__ = [
    "Model",
    "ModelArgs",
    "Transition",
    "convolve",
    "gate_loop",
    "gate_loop_softmax",
    "linear_scan",
    "load",
    "save",
    "watch",
]

_LATER = {"Model": "model.lm", "ModelArgs": "model.lm", "load": "io", "save": "io"}


def __getattr__(name: str) -> Any:
    if name == "watch":
        return import_module(f"{__name__}.watch")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
