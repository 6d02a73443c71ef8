"""GateLoop on MLX: linear recurrence whose state transition is controlled by the data.

The operator and its transition are here at once; everything of the language model, which needs
mlx-lm and transformers, is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from mlx_gateloop import _register

_register.install()  # first: it sees to MLX's BLAS when MLX is imported

from mlx_gateloop.ops import (  # noqa: E402
    Transition,
    convolve,
    gate_loop,
    gate_loop_softmax,
    linear_scan,
)

if TYPE_CHECKING:
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
]

_LATER = {"Model": "model.lm", "ModelArgs": "model.lm", "load": "io", "save": "io"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
