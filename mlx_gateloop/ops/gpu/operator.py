"""The operator and its scan by the GPU kernels, differentiable; results as in `gate_loop`."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops.gpu.kernels import (
    BACKWARD,
    FORWARD,
    TILE,
    Arrays,
    Kernels,
    Plan,
    Variant,
    plan,
)
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.transition import FORMS, Transition

CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13")
NAMES = {"metal": "Apple", "cuda": "NVIDIA"}
TYPES = (mx.float32, mx.float16, mx.bfloat16)


class KernelError(RuntimeError):
    """A kernel does not compile or does not run on this GPU."""


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
    y, h1, _ = _run(kernels, variant, arrays)
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
    h = _run(kernels, variant, [*planes, mx.stack(start, 1)])[: len(a)]
    return tuple(plane.reshape(shape) for plane in h)


def _alike(*arrays: mx.array) -> tuple[mx.array, ...]:
    """Cast the arrays to one dtype that the kernels support: their common one, else float32."""
    kept = len({x.dtype for x in arrays}) == 1 and arrays[0].dtype in TYPES
    return arrays if kept else tuple(x.astype(mx.float32) for x in arrays)


def _run(kernels: Kernels, variant: Variant, arrays: Sequence[mx.array]) -> Planes:
    """Return y, z if there is one, the last state and the saved states."""
    names = [name for name in FORWARD[0] if name not in variant.absent]
    x = dict(zip(names, arrays, strict=True))
    shape = x["first"].shape
    cut = plan(kernels.platform, *shape)
    cut = Plan(cut.segments, min(cut.parts, 2))
    failure = _failure(kernels, variant, cut, x["k"].dtype, x["first"].dtype)
    if (shape[1] + TILE) * shape[2] >= 2**31:  # they count to the end of the last tile
        failure = "the kernels count the numbers of a sequence in 31 bits; cut it"
    if failure:
        raise KernelError(failure)
    return tuple(_operator(kernels, variant)(*arrays))


@cache
def _failure(
    kernels: Kernels, variant: Variant, cut: Plan, dtype: mx.Dtype, gate: mx.Dtype
) -> str | None:
    """Run a variant's kernels on a few numbers; returns the error if one fails, else None.

    The gradient's kernels run too: later they would compile in the user's own evaluation, where
    the error cannot be caught.
    """
    shape = (1, cut.parts * TILE, 8)  # MLX passes fewer than 8 numbers differently: another kernel
    edge = mx.zeros((1, variant.planes, 8))
    x = dict.fromkeys(("q", "k", "v", "dy", "dz"), mx.zeros(shape, dtype))
    x |= dict.fromkeys(("first", "second"), mx.zeros(shape, gate))
    x["mask"] = mx.zeros(shape[:2], mx.bool_)
    try:
        x["h0"] = _entries(kernels, variant, cut, x, edge, adjoint=False)
        x["dh1"] = _entries(kernels, variant, cut, x, edge, adjoint=True)
        outputs = kernels.forward(variant, cut, x)
        mx.eval(outputs, kernels.backward(variant, cut, x | {"states": outputs["states"]}))
    except (RuntimeError, ValueError) as error:  # MLX raises ValueError for oversized threadgroups
        lines = str(error).splitlines() or ["no reason given"]
        what = next((line for line in lines if "error:" in line), lines[0])
        return f"a {kernels.platform} kernel fails: {what.strip()}"
    return None


@cache
def _operator(kernels: Kernels, variant: Variant) -> Callable[..., Any]:
    """Build the forward pass with its gradient; arrays as in `FORWARD`.

    There are no rules for vmap and jvp: MLX would ask the kernels for theirs first.
    """
    absent = variant.absent
    names = [name for name in FORWARD[0] if name not in absent]
    kept = [name for name in names if name != "h0"]  # read by the gradient, besides the states
    cotangents = [name for name in BACKWARD[0][6:] if name not in absent]
    gradients = [name for name in BACKWARD[1] if name not in absent]

    def forward(*arrays: mx.array) -> Planes:
        x = dict(zip(names, arrays, strict=True))
        cut = plan(kernels.platform, *x["first"].shape)
        h0 = _entries(kernels, variant, cut, x, x["h0"], adjoint=False)
        return tuple(kernels.forward(variant, cut, x | {"h0": h0}).values())

    def backward(*arrays: mx.array) -> Planes:
        x = dict(zip(kept + cotangents, arrays, strict=True))
        cut = plan(kernels.platform, *x["first"].shape)
        dh1 = _entries(kernels, variant, cut, x, x["dh1"], adjoint=True)
        return tuple(kernels.backward(variant, cut, x | {"dh1": dh1}).values())

    operator = mx.custom_function(forward)
    gradient = mx.custom_function(backward)

    @operator.vjp
    def operator_vjp(arrays: Planes, cotangents: Planes, outputs: Planes) -> Planes:
        *given, _ = cotangents  # the saved states have none
        primals = dict(zip(names, arrays, strict=True))
        found: Any = gradient(*(primals[name] for name in kept), outputs[-1], *given)
        by_name = dict(zip(gradients, found, strict=True))
        if variant.masked:
            by_name["dmask"] = mx.zeros_like(primals["mask"])
        return tuple(by_name[f"d{name}"] for name in names)

    @gradient.vjp
    def gradient_vjp(*_: object) -> Planes:
        raise NotImplementedError("second derivatives: only backend='ops' and 'native' have them")

    return operator


def _entries(
    kernels: Kernels, variant: Variant, cut: Plan, x: Arrays, edge: mx.array, adjoint: bool
) -> mx.array:
    """Compute the states that enter each part, `[B, parts, P, D]`; if `adjoint`, their gradients.

    It takes two launches before the caller's: the effect of every piece, and a scan over pieces.
    """
    if cut.parts == 1:
        return edge[:, None]
    planes_x = variant.planes_x
    if adjoint:
        sources = ("dy", "dz") if planes_x else ("q", "dy")
        planes_x = planes_x and variant.planes
        x = x | {"k": x[sources[0]], "v": x.get(sources[1], x["k"])}
    pieces = Variant(variant.form, variant.is_complex, planes_x, variant.masked, variant.reverse)
    done = kernels.aggregate(pieces, cut, x, adjoint)
    names = {"k": "Hr", "v": "Hi", "first": "Ar", "second": "Ai"}
    scan = Variant(FORMS["cartesian"], variant.is_complex, variant.planes, reverse=adjoint)
    arrays = {name: done[of] for name, of in names.items() if of in done} | {"h0": edge[:, None]}
    after = kernels.forward(scan, Plan(cut.segments), arrays)
    S = cut.segments
    between = slice(S, None, S) if adjoint else slice(S - 1, -1, S)
    inner = mx.stack([after[name][:, between] for name in "yz" if name in after], 2)
    outer = edge[:, None]
    return mx.concatenate([inner, outer] if adjoint else [outer, inner], 1)
