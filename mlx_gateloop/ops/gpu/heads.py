"""Both passes of the operator with heads by the GPU kernels.

The forward pass is one launch ("outputs"), which keeps nothing for the gradient. That computes the
states at every `INTERVAL` steps again ("states"), and from these all gradients ("backward"). Where
there are few threadgroups, sequences run in parts side by side, after a launch that computes the
effect of each part on a state ("effects") or on the gradient of one ("adjoints").
"""

from dataclasses import dataclass, replace

import mlx.core as mx

from mlx_gateloop.ops.gpu.first_use import accepted, check_counts
from mlx_gateloop.ops.gpu.heads_kernels import HeadsPlan, Task, launch
from mlx_gateloop.ops.gpu.kernels import Arrays, Kernels, Variant
from mlx_gateloop.ops.gpu.launch_config import SEGMENTS, TILE, WIDTH, Pass

SHORTEST_PART = 256  # steps; each part goes through the effects of all before it


def plan(cores: int, task: Task, shape: tuple[int, ...], is_complex: bool) -> HeadsPlan:
    """Choose a tile that covers B, L, H, K, V if one does, and parts for few threadgroups."""
    B, L, H, K, V = shape
    max_parts = max(1, L // SHORTEST_PART)

    def groups(cut: HeadsPlan) -> int:
        keys, values = cut.tiles(task, K, V)
        return B * H * keys * values

    if task == "backward":  # 32 keys and at most 64 values
        values, limit = (4, 16) if is_complex else (8, 8)
        cut = HeadsPlan(min(_covering(-(-V // values)), limit), values)
    else:
        cut = HeadsPlan(_covering(-(-K // 8)), 2)
        if V <= WIDTH or groups(cut) * max_parts < cores:
            cut = replace(cut, values=1)
    parts = min(2 * cores // groups(cut), max_parts)
    if parts < 3:  # the launch before takes nearly as long as the one after
        return cut
    tiles = -(-L // TILE)
    return replace(cut, parts=-(-tiles // -(-tiles // parts)))  # no part without steps


def _covering(needed: int) -> int:
    """Return the fewest segments that are at least as many, if there are as many."""
    return next((s for s in reversed(SEGMENTS) if s >= needed), SEGMENTS[0])


def run(kernels: Kernels, name: Pass, variant: Variant, x: Arrays) -> Arrays:
    """Run a pass on arrays as in `launch`; return y and the last state h1, or the gradients."""
    if name == "forward":
        return _in_parts(kernels, "outputs", variant, x)
    return _in_parts(kernels, "backward", variant, x | _in_parts(kernels, "states", variant, x))


def _in_parts(kernels: Kernels, task: Task, variant: Variant, x: Arrays) -> Arrays:
    _, L, H, K, V = shape = (*x["k"].shape, x["v"].shape[-1])
    max_keys, max_values = 8 * SEGMENTS[0], 2 * WIDTH  # per tile, to whose end they count
    check_counts((L + TILE) * H * max(K, V), (H * K + max_keys) * (V + max_values))
    cut = plan(kernels.cores, task, shape, variant.is_complex)
    if cut.parts > 1:
        adjoint = task == "backward"
        of_parts: Task = "adjoints" if adjoint else "effects"
        wide = plan(kernels.cores, of_parts, shape, variant.is_complex)
        wide = replace(wide, parts=cut.parts)
        sources = {"k": x["q"], "v": x["dy"]} if adjoint else {}
        found = _accepted(kernels, of_parts, variant, wide, x | sources)
        x = x | {"products": found["decay"], "ends": found["h1"]}
    return _accepted(kernels, task, variant, cut, x)


def _accepted(kernels: Kernels, task: Task, variant: Variant, cut: HeadsPlan, x: Arrays) -> Arrays:
    """Launch a task, with as many segments as this GPU takes."""
    sizes, types = (x["k"].shape[-1], x["v"].shape[-1]), (x["k"].dtype, x["first"].dtype)
    shared = x["first"].shape[-1] < sizes[0]
    trial = Trial(kernels, task, variant, replace(cut, parts=1), types, sizes, shared)
    cut = replace(cut, segments=accepted(kernels, trial, cut.segments))
    return launch(kernels, task, variant, cut, x)


@dataclass(frozen=True)
class Trial:
    """A launch on a few zeros, which compiles the kernel; other arguments as in `launch`."""

    kernels: Kernels
    task: Task
    variant: Variant
    cut: HeadsPlan
    types: tuple[mx.Dtype, mx.Dtype]  # dtypes of keys and of gates
    # K and V of the call; several tiles change the type of outputs, and so the kernel
    sizes: tuple[int, int] = (1, 1)
    shared: bool = False  # the keys of a head share one transition, which changes types too

    def __call__(self, segments: int) -> Arrays:
        cut, P = replace(self.cut, segments=segments), self.variant.planes
        # MLX passes fewer than 8 numbers differently: another kernel. Two tiles are several.
        tile = cut.tile(self.task)
        K, V = (min(max(n, 8), largest + 1) for n, largest in zip(self.sizes, tile, strict=True))
        T, gate = self.types
        x = dict.fromkeys(("q", "k"), mx.zeros((1, 8, 1, K), T))
        x |= dict.fromkeys(("v", "dy"), mx.zeros((1, 8, 1, V), T))
        x |= dict.fromkeys(("first", "second"), mx.zeros((1, 8, 1, 1 if self.shared else K), gate))
        x |= dict.fromkeys(("h0", "dh1", "ends"), mx.zeros((1, P, 1, K, V)))
        x |= {"mask": mx.zeros((1, 8), mx.bool_), "products": mx.zeros((1, P, 1, K))}
        x |= {"states": mx.zeros((1, 1, P, 1, K, V))}
        return launch(self.kernels, self.task, self.variant, cut, x)
