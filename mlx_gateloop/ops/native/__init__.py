"""The C++ extension for CPUs, if it was built, and for the MLX that is running."""

import logging
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx

MLX_VERSION: str = mx.__version__  # type: ignore[attr-defined]  # the stubs lack it
FLOATS = (mx.float32, mx.float16, mx.bfloat16)  # the types that the operator and activations read
NOT_INSTALLED = "this is the source of the package, not an installed one"


def extension() -> Any:  # untyped: compiled
    """Return the compiled module, or None if there is none; the first call may log the reason."""
    return _load()[0]


def extension_on_cpu() -> Any:
    """Return the compiled module if there is one and MLX computes on a CPU, else None."""
    return extension() if mx.default_device().type == mx.cpu else None


def absence() -> str | None:
    """Return the reason in one line if there is no extension, else None."""
    return _load()[1]


@cache
def _load() -> tuple[Any | None, str | None]:
    try:
        built = import_module("mlx_gateloop._build_info")
    except ImportError:
        return None, NOT_INSTALLED
    except SyntaxError as error:
        return None, f"its installation is damaged: {error}"
    if built.REASON:
        return None, built.REASON
    if built.MLX_VERSION != MLX_VERSION:  # it might load all the same, and then crash
        reason = f"it was built for MLX {built.MLX_VERSION}, and this is MLX {MLX_VERSION}"
        message = "mlx_gateloop runs without its C++ extension: %s; see gateloop doctor"
        logging.getLogger(__name__).warning(message, reason)
        return None, reason
    try:
        module = import_module(f"{__name__}._ext")
        module.sigmoid(mx.zeros((1,)))  # bindings of another nanobind would not know MLX's arrays
    except (ImportError, TypeError) as error:
        return None, f"it does not load: {' '.join(str(error).split())}"
    return module, None
