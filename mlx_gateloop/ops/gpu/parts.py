"""Sequences in parts that run side by side."""

from mlx_gateloop.ops.gpu.kernels import Arrays, Kernels, Variant
from mlx_gateloop.ops.gpu.plans import Pass, Plan


def run(kernels: Kernels, name: Pass, variant: Variant, cut: Plan, x: Arrays) -> Arrays:
    """Run a pass; in parts, after a launch that computes the effect of each."""
    if cut.parts > 1:
        x = x | _effects(kernels, variant, cut, x, name == "backward")
    return (kernels.forward if name == "forward" else kernels.backward)(variant, cut, x)


def _effects(kernels: Kernels, variant: Variant, cut: Plan, x: Arrays, adjoint: bool) -> Arrays:
    """Compute the effect of each part on a state, or on the gradient of one."""
    planes_x = variant.planes_x
    if adjoint:
        sources = ("dy", "dz") if planes_x else ("q", "dy")
        planes_x = planes_x and variant.planes
        x = x | {"k": x[sources[0]], "v": x.get(sources[1], x["k"])}
    of = Variant(variant.form, variant.is_complex, planes_x, variant.masked, variant.reverse)
    return kernels.aggregate(of, cut, x, adjoint)
