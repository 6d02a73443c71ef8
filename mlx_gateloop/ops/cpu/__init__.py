"""The operator and its scan in the C++ extension for CPUs, if it was built for this MLX."""

import logging
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.transition import FORMS, Transition

MLX_VERSION: str = mx.__version__  # type: ignore[attr-defined]  # the stubs lack it
FLOATS = (mx.float32, mx.float16, mx.bfloat16)  # the types that the operator and activations read
NOT_INSTALLED = "this is the source of the package, not an installed one"


def gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
) -> tuple[mx.array, mx.array]:
    """Run the operator with fused gates; arguments as in `Backend.operator`."""
    operator = extension().gate_loop if q.ndim == 3 else extension().gate_loop_heads
    inputs = (q, k, v, a.first, a.second)
    arrays = [x if x is None or x.dtype in FLOATS else x.astype(mx.float32) for x in inputs]
    return operator(*arrays, h0, mask, form=FORMS[a.form], reverse=bool(reverse))


def linear_recurrence(a: Planes, x: Planes, h0: Planes, reverse: bool = False) -> Planes:
    """Compute all states; arguments as in `scan.linear_recurrence`."""
    shape = a[0].shape
    flat = [[_flat(plane, 3) for plane in planes] for planes in (a, x)]
    h = extension().linear_scan(*flat, [_flat(plane, 2) for plane in h0], reverse=bool(reverse))
    return tuple(plane if len(shape) == 3 else plane.reshape(shape) for plane in h)


def _flat(x: mx.array, axes: int) -> mx.array:
    # [B, L, ...] -> [B, L, D]; an unneeded reshape would fix the shape in a shapeless compile
    return x if x.ndim == axes else x.reshape(*x.shape[: axes - 1], -1)


def extension() -> Any:  # untyped: compiled
    """Return the compiled module, or None if there is none; the first call may log the reason."""
    return _load()[0]


def extension_on_cpu() -> Any:
    """Return the compiled module if there is one and MLX computes on a CPU, else None."""
    return extension() if mx.default_device().type == mx.cpu else None


def why_missing() -> str | None:
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
