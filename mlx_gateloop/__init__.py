"""GateLoop on MLX: linear recurrence whose state transition is controlled by the data.

Everything is imported at first use: a program can begin before MLX, mlx-lm and transformers are
there, which take a second.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlx_gateloop import _blas

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is missing
_blas.connect(__path__)  # before MLX is imported
import_module("mlx_gateloop.model.registered")  # mlx-lm finds the model type from now on

if TYPE_CHECKING:
    from mlx_gateloop import watch
    from mlx_gateloop.io.layers import load_layers
    from mlx_gateloop.io.models import load, save
    from mlx_gateloop.io.states import read_state, write_state
    from mlx_gateloop.model.layer import GateLoop
    from mlx_gateloop.model.lm import Model, ModelArgs
    from mlx_gateloop.model.state import State
    from mlx_gateloop.ops import Transition, gate_loop, linear_scan
    from mlx_gateloop.train.tune_state import tune_state

__version__ = "0.1.0"
__all__ = [
    "GateLoop", "Model", "ModelArgs", "State", "Transition", "gate_loop", "linear_scan", "load",
    "load_layers", "read_state", "save", "tune_state", "watch", "write_state",
]  # fmt: skip

_FROM = {"GateLoop": "model.layer", "Model": "model.lm", "ModelArgs": "model.lm"}
_FROM |= {"load": "io.models", "load_layers": "io.layers", "save": "io.models"}
_FROM |= {"State": "model.state", "read_state": "io.states", "write_state": "io.states"}
_FROM |= {"tune_state": "train.tune_state"}


def __getattr__(name: str) -> Any:
    if name in ("ops", "watch"):
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_FROM.get(name, 'ops')}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
