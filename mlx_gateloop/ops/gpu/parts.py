"""Sequences in parts that run side by side: the states that enter each."""

from dataclasses import replace

import mlx.core as mx

from mlx_gateloop.ops.gpu.kernels import Arrays, Kernels, Variant
from mlx_gateloop.ops.gpu.plans import Pass, Plan
from mlx_gateloop.ops.transition import FORMS


def run(
    kernels: Kernels, name: Pass, variant: Variant, cut: Plan, x: Arrays, edge: mx.array
) -> Arrays:
    """Run a pass; `edge` `[B, P, D]` is the state before the first step, or dh1."""
    edges = _entries(kernels, variant, cut, x, edge, name == "backward")
    if name == "forward":
        return kernels.forward(variant, cut, x | {"h0": edges})
    return kernels.backward(variant, cut, x | {"dh1": edges})


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
    after = kernels.forward(scan, replace(cut, parts=1), arrays)
    S = cut.segments
    between = slice(S, None, S) if adjoint else slice(S - 1, -1, S)
    inner = mx.stack([after[name][:, between] for name in "yz" if name in after], 2)
    outer = edge[:, None]
    return mx.concatenate([inner, outer] if adjoint else [outer, inner], 1)
