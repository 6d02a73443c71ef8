"""The C++ extension for CPUs, where it was built and for the MLX that runs."""

import warnings
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx

MLX_VERSION: str = mx.__version__  # type: ignore[attr-defined]  # the stubs lack it


def extension() -> Any | None:
    """The compiled module, or None where there is none: a first call may warn, none raises."""
    return _load()[0]


def absence() -> str | None:
    """Why there is no extension, in one line; None if there is one."""
    return _load()[1]


@cache
def _load() -> tuple[Any | None, str | None]:
    try:
        built = import_module("mlx_gateloop._build_info")
    except ImportError:
        return None, "the package was not installed, this is its source"
    if built.REASON:
        return None, built.REASON
    if built.MLX_VERSION != MLX_VERSION:  # it might load all the same, and then crash
        reason = f"it was built for MLX {built.MLX_VERSION}, and this is MLX {MLX_VERSION}"
        message = f"mlx_gateloop runs without its C++ extension: {reason}; see gateloop doctor"
        warnings.warn(message, stacklevel=3)
        return None, reason
    try:
        return import_module(f"{__name__}._ext"), None
    except ImportError as error:
        return None, f"it does not load: {error}"
