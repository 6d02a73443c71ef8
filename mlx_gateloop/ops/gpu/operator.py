"""The operator and its scan by the GPU kernels, differentiable; results as in `gate_loop`."""

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.gpu.first_use import KernelError, plan
from mlx_gateloop.ops.gpu.kernels import BACKWARD, FORWARD, PARTS, Kernels, Variant
from mlx_gateloop.ops.gpu.parts import run
from mlx_gateloop.ops.gpu.plain import plain_gradients
from mlx_gateloop.ops.gpu.plans import device, stored
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.transition import FORMS, Transition

CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13")
NAMES = {"metal": "Apple", "cuda": "NVIDIA"}
TYPES = (mx.float32, mx.float16, mx.bfloat16)


def absence(platform: str) -> str | None:
    """Return the reason in one line if a platform's kernels cannot be used, else None."""
    if not getattr(mx, platform).is_available():
        if platform == "cuda" and not any(map(_is_installed, CUDA_BUILDS)):
            return "MLX's CUDA build is not installed (docs/backends.md, On a GPU)"
        return f"MLX finds no {NAMES[platform]} GPU here"
    if mx.default_device().type == mx.cpu:
        return "MLX's default device is the CPU"
    return None


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


@cache
def kernels(platform: str) -> Kernels:
    """Build the platform's kernels with MLX, tuned to this device if it was measured."""
    return Kernels(platform, getattr(mx.fast, f"{platform}_kernel"), stored(device()))


def gate_loop(
    kernels: Kernels,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
) -> tuple[mx.array, mx.array]:
    """Run the max-headed operator with fused gates; all but h0 and mask are `[B, L, D]`, not empty.

    h0 and the last state are `[B, P, D]`, with P = 2 planes for complex gates and 1 for real ones.

    Raises:
        KernelError: A kernel does not compile.
    """
    B, _, D = q.shape
    q, k, v = _alike(q, k, v)
    gates = _alike(a.first) if a.second is None else _alike(a.first, a.second)
    variant = Variant(FORMS[a.form], a.is_complex, 0, mask is not None, reverse)
    h0 = mx.zeros((B, variant.planes, D)) if h0 is None else h0.astype(mx.float32)
    arrays = [q, k, v, *gates, *([] if mask is None else [mask]), h0]
    y, h1, _ = _operator(kernels, variant)(*arrays)
    return y, h1


def linear_recurrence(
    kernels: Kernels, a: Planes, x: Planes, h0: Planes, reverse: bool = False
) -> Planes:
    """Compute all states; arguments as in `scan.linear_recurrence`.

    Raises:
        KernelError: A kernel does not compile.
    """
    h0 = h0 or tuple(mx.zeros((x[0].shape[0], *x[0].shape[2:])) for _ in x)
    if len(a) < len(x):  # real gates keep the planes apart
        return tuple(
            linear_recurrence(kernels, a, (plane,), (start,), reverse)[0]
            for plane, start in zip(x, h0, strict=True)
        )
    shape = a[0].shape
    if a[0].size == 0:
        return tuple(mx.zeros(shape) for _ in h0)
    B, L = shape[:2]
    planes = [plane.reshape(B, L, -1) for plane in (*x, *a)]
    start = [plane.reshape(B, -1) for plane in h0]
    start += [mx.zeros_like(start[0])] * (len(a) - len(start))
    variant = Variant(FORMS["cartesian"], len(a) == 2, len(x), False, reverse)
    h = _operator(kernels, variant)(*planes, mx.stack(start, 1))[: len(a)]
    return tuple(plane.reshape(shape) for plane in h)


def _alike(*arrays: mx.array) -> tuple[mx.array, ...]:
    """Cast the arrays to one dtype that the kernels support: their common one, else float32."""
    kept = len({x.dtype for x in arrays}) == 1 and arrays[0].dtype in TYPES
    return arrays if kept else tuple(x.astype(mx.float32) for x in arrays)


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=4)


@cache
def _operator(kernels: Kernels, variant: Variant) -> Callable[..., Any]:
    """Build the forward pass with its gradient; arrays as in `FORWARD`.

    It returns y, z if there is one, the last state and the saved states.

    There are no rules for vmap and jvp: MLX would ask the kernels for theirs first.
    """
    absent = {*variant.absent, *PARTS}  # those are computed with each pass
    names = [name for name in FORWARD[0] if name not in absent]
    kept = [name for name in names if name != "h0"]  # read by the gradient, besides the states
    cotangents = [name for name in BACKWARD[0][6:] if name not in absent]
    gradients = [name for name in BACKWARD[1] if name not in absent]

    def forward(*arrays: mx.array) -> Planes:
        x = dict(zip(names, arrays, strict=True))
        cut = plan(kernels, "forward", variant, x)
        return tuple(run(kernels, "forward", variant, cut, x).values())

    def backward(*arrays: mx.array) -> Planes:
        x = dict(zip(kept + cotangents, arrays, strict=True))
        cut = plan(kernels, "backward", variant, x)
        return tuple(run(kernels, "backward", variant, cut, x).values())

    operator = mx.custom_function(forward)
    gradient = mx.custom_function(backward)

    @operator.vjp
    def operator_vjp(arrays: Planes, cotangents: Planes, outputs: Planes) -> Planes:
        *given, _ = cotangents  # the saved states have none
        primals = dict(zip(names, arrays, strict=True))
        try:
            found: Any = gradient(*(primals[name] for name in kept), outputs[-1], *given)
        except KernelError as error:
            _warn_once(f"mlx_gateloop computes the gradient in plain MLX: {error}")
            found = plain_gradients(variant, primals, given)
        by_name = dict(zip(gradients, found, strict=True))
        if variant.masked:
            by_name["dmask"] = mx.zeros_like(primals["mask"])
        return tuple(by_name[f"d{name}"] for name in names)

    @gradient.vjp
    def gradient_vjp(*_: object) -> Planes:
        raise NotImplementedError("second derivatives: only backend='ops' and 'native' have them")

    return operator
