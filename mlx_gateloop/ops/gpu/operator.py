"""The operator and its scan by the GPU kernels, differentiable; results as in `gate_loop`."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import distributions
from typing import Any, NamedTuple

import mlx.core as mx

from mlx_gateloop.ops import plain, scan
from mlx_gateloop.ops.gpu import heads, heads_kernels
from mlx_gateloop.ops.gpu.first_use import KernelError, plan, warn_once
from mlx_gateloop.ops.gpu.kernels import BACKWARD, FORWARD, PARTS, Arrays, Kernels, Variant, run
from mlx_gateloop.ops.gpu.launch_config import Pass
from mlx_gateloop.ops.planes import Planes, unstack
from mlx_gateloop.ops.transition import FORMS, Transition

CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13")
NAMES = {"metal": "Apple", "cuda": "NVIDIA"}
TYPES = (mx.float32, mx.float16, mx.bfloat16)


def why_missing(platform: str) -> str | None:
    """Return the reason in one line if a platform's kernels cannot be used, else None."""
    if not getattr(mx, platform).is_available():
        if platform == "cuda" and not any(any(distributions(name=n)) for n in CUDA_BUILDS):
            return "MLX's CUDA build is not installed (docs/backends.md, On a GPU)"
        return f"MLX finds no {NAMES[platform]} GPU here"
    return "MLX's default device is the CPU" if mx.default_device().type == mx.cpu else None


@cache
def kernels(platform: str) -> Kernels:
    """Build the platform's kernels with MLX."""
    return Kernels(platform, getattr(mx.fast, f"{platform}_kernel"))


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
    """Run the operator with fused gates; arrays as in `gate_loop`, not empty."""
    has_heads = q.ndim == 4
    state = (1 + a.is_complex, *q.shape[2:], *v.shape[3:])
    q, k, v = _alike(q, k, v)
    gates = _alike(a.first) if a.second is None else _alike(a.first, a.second)
    variant = Variant(FORMS[a.form], a.is_complex, 0, mask is not None, reverse)
    h0 = mx.zeros((q.shape[0], *state)) if h0 is None else h0.astype(mx.float32)
    arrays = [q, k, v, *gates, *([] if mask is None else [mask]), h0]
    y, h1, *_ = _operator(kernels, variant, has_heads)(*arrays)
    return y, h1


def linear_recurrence(
    kernels: Kernels, a: Planes, x: Planes, h0: Planes, reverse: bool = False
) -> Planes:
    """Compute all states; arguments as in `scan.linear_recurrence`."""
    h0 = h0 or tuple(mx.zeros((x[0].shape[0], *x[0].shape[2:])) for _ in x)
    if len(a) < len(x):  # real gates keep real and imaginary part apart
        return tuple(
            linear_recurrence(kernels, a, (plane,), (start,), reverse)[0]
            for plane, start in zip(x, h0, strict=True)
        )
    shape = a[0].shape
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


class _Passes(NamedTuple):
    """Both passes of a form of the operator, and the names of their arrays."""

    inputs: list[str]  # inputs of the forward pass
    saved: list[str]  # its last outputs, which only the gradient reads
    cotangents: list[str]  # cotangents of its other outputs
    gradients: list[str]  # outputs of the backward pass
    run: Callable[[Kernels, Pass, Variant, Arrays], Arrays]  # runs a pass; arrays by name


_MAX_HEADED = _Passes(
    [name for name in FORWARD[0] if name not in PARTS],  # those are computed with each pass
    ["states"],
    ["dy", "dz", "dh1"],
    BACKWARD[1],
    lambda kernels, name, how, x: run(kernels, name, how, plan(kernels, name, how, x), x),
)
_HEADS = _Passes(
    [*heads_kernels.GATED, "h0"], [], ["dy", "dh1"], heads_kernels.BACKWARD[1], heads.run
)


@cache
def _operator(kernels: Kernels, variant: Variant, has_heads: bool = False) -> Callable[..., Any]:
    """Build the forward pass with its gradient; arrays as in `_Passes`."""
    passes = _HEADS if has_heads else _MAX_HEADED
    names, cotangents, gradients = (
        [name for name in each if name not in variant.absent]
        for each in (passes.inputs, passes.cotangents, passes.gradients)
    )

    @mx.custom_function
    def operator(*arrays: mx.array) -> Planes:
        x = dict(zip(names, arrays, strict=True))
        return tuple(passes.run(kernels, "forward", variant, x).values())

    @mx.custom_function
    def gradient(*arrays: mx.array) -> Planes:
        x = dict(zip([*names, *passes.saved, *cotangents], arrays, strict=True))
        return tuple(passes.run(kernels, "backward", variant, x).values())

    @operator.vjp
    def operator_vjp(arrays: Planes, cotangents: Planes, outputs: Planes) -> Planes:
        given = len(cotangents) - len(passes.saved)  # what is saved has none
        primals = dict(zip(names, arrays, strict=True))
        try:
            found: Any = gradient(*arrays, *outputs[given:], *cotangents[:given])
        except KernelError as error:
            warn_once(f"mlx_gateloop computes the gradient in plain MLX: {error}")
            found = _plain_gradients(variant, primals, cotangents[:given])
        by_name = dict(zip(gradients, found, strict=True))
        if variant.masked:
            by_name["dmask"] = mx.zeros_like(primals["mask"])
        return tuple(by_name[f"d{name}"] for name in names)

    @gradient.vjp
    def gradient_vjp(*_: object) -> Planes:
        raise NotImplementedError("second derivatives: only backend='mlx' and 'cpu' have them")

    return operator


def _plain_gradients(variant: Variant, x: Arrays, cotangents: Sequence[mx.array]) -> list[mx.array]:
    """Compute the forward pass's gradients in plain MLX, except the mask's."""
    names = [name for name in x if name != "mask"]
    (form,) = (name for name, number in FORMS.items() if number == variant.form)

    def outputs(*arrays: mx.array) -> list[mx.array]:
        y, reverse = x | dict(zip(names, arrays, strict=True)), variant.reverse
        a = Transition(form, y["first"], y.get("second"))
        if not variant.planes_x:
            return [*plain.gate_loop(y["q"], y["k"], y["v"], a, y["h0"], y.get("mask"), reverse)]
        planes = tuple(y[name] for name in "kv" if name in y)
        h = scan.linear_recurrence(a.planes(), planes, unstack(y["h0"]), reverse)
        return [*h, mx.stack([plane[:, 0 if reverse else -1] for plane in h], 1)]

    return mx.vjp(outputs, [x[name] for name in names], list(cotangents))[1]
