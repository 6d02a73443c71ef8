"""The gradient in plain MLX operations, for a GPU that refuses the kernel's."""

from collections.abc import Sequence

import mlx.core as mx

from mlx_gateloop.ops import plain
from mlx_gateloop.ops.gpu.kernels import Arrays, Variant
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.scan import linear_recurrence
from mlx_gateloop.ops.transition import FORMS, Transition


def plain_gradients(variant: Variant, x: Arrays, cotangents: Sequence[mx.array]) -> list[mx.array]:
    """Compute the gradients of the forward pass but for the mask's.

    Args:
        variant: The forward pass's.
        x: Its inputs by name.
        cotangents: Those of y, z if there is one, and the last state.
    """
    names = [name for name in x if name != "mask"]

    def outputs(*arrays: mx.array) -> list[mx.array]:
        return list(_forward(variant, x | dict(zip(names, arrays, strict=True))))

    return mx.vjp(outputs, [x[name] for name in names], list(cotangents))[1]


def _forward(variant: Variant, x: Arrays) -> Planes:
    (form,) = (name for name, number in FORMS.items() if number == variant.form)
    a, reverse = Transition(form, x["first"], x.get("second")), variant.reverse
    if not variant.planes_x:
        return plain.gate_loop(x["q"], x["k"], x["v"], a, x["h0"], x.get("mask"), reverse)
    start = tuple(x["h0"][:, plane] for plane in range(variant.planes))
    planes = tuple(x[name] for name in "kv" if name in x)
    h = linear_recurrence(a.planes(), planes, start, reverse)
    return (*h, mx.stack([plane[:, 0 if reverse else -1] for plane in h], 1))
