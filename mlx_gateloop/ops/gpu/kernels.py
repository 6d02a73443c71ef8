"""Kernels composed from the source files in this folder, and their launches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import mlx.core as mx

from mlx_gateloop.ops.gpu.launch_config import CORES, WIDTH, Pass, Plan

Arrays = dict[str, mx.array]
Template = list[tuple[str, mx.Dtype | int | bool]]
Launch = Callable[..., list[mx.array]]  # a kernel of MLX
Arguments = tuple[list[str], list[str]]  # names of inputs and outputs
Outputs = Mapping[str, tuple[tuple[int, ...], mx.Dtype]]

INTERVAL = 32  # steps between saved states; a tile starts at one of them

# Arrays in the order of the kernels' parameters. A launch passes a few zeros for an input that its
# variant does not read, and a single number for an output that it does not write.
PARTS = ["Ar", "Ai", "Hr", "Hi"]  # the effect of each part of a sequence
FORWARD = (["q", "k", "v", "first", "second", "mask", "h0", *PARTS], ["y", "z", "h1", "states"])
BACKWARD = (
    ["q", "k", "v", "first", "second", "mask", "states", "dy", "dz", "dh1", *PARTS],
    ["dq", "dk", "dv", "dfirst", "dsecond", "dh0"],
)
AGGREGATE = (["k", "v", "first", "second", "mask"], PARTS)
ARGUMENTS = {"forward": FORWARD, "backward": BACKWARD, "aggregate": AGGREGATE}


@dataclass(frozen=True)
class Variant:
    """The constants compiled into a kernel, besides types and tile sizes."""

    form: int  # 0 sigmoid, 1 polar, 2 cartesian gates
    is_complex: bool  # the gates are complex
    # 0: operator, x = k v, y = q Re(h); scan: 1 real, 2 complex x, y and z are parts of h
    planes_x: int = 0
    masked: bool = False  # there is a mask
    reverse: bool = False  # the recurrence runs from the last step to the first

    @property
    def absent(self) -> set[str]:
        """Names of arrays and gradients that this variant neither reads nor writes."""
        absent = {"q"} if self.planes_x else {"z"}
        absent |= set() if self.is_complex else {"second", "z", "Ai", "Hi"}
        absent |= {"v"} if self.planes_x == 1 else set()
        absent |= set() if self.masked else {"mask"}
        return absent | {f"d{name}" for name in absent}

    @property
    def planes(self) -> int:
        """P, the real arrays of a state: 1, or 2 with an imaginary part."""
        return 1 + self.is_complex

    def template(self, x: Mapping[str, mx.array], segments: int, steps: int) -> Template:
        return [
            ("T", x["k"].dtype),
            ("Gate", x["first"].dtype),
            ("FORM", self.form),
            ("COMPLEX", self.is_complex),
            ("MASKED", self.masked),
            ("REVERSE", self.reverse),
            ("S", segments),
            ("R", steps),
            ("C", INTERVAL),
        ]


class Kernels:
    """The kernels of a platform, built at first use by `mx.fast.metal_kernel` or its like."""

    def __init__(
        self, platform: str, factory: Callable[..., Launch], cores: int | None = None
    ) -> None:
        self.platform = platform
        self.factory = factory
        self.cores = cores or CORES[platform]
        self.compiled: set[tuple[object, ...]] = set()  # names and constants: a kernel each
        self.seconds = 0.0  # taken by their first runs
        self._kernels: dict[tuple[str, int], Launch] = {}

    def max_headed(
        self, name: str, variant: Variant, plan: Plan, x: Arrays, adjoint: bool = False
    ) -> Arrays:
        """Launch a kernel of `ARGUMENTS`; `adjoint`: the parts' effects on a gradient.

        The forward pass computes y, z, the last state h1 `[B, P, D]` and those at every `INTERVAL`
        steps, the backward pass gradients, "aggregate" the effect of each part `[B, parts, D]`.
        """
        B, L, D = x["first"].shape
        T, gate, f32, P = x["k"].dtype, x["first"].dtype, mx.float32, variant.planes
        outputs = dict.fromkeys(("y", "z", "dq", "dk", "dv"), ((B, L, D), T))
        outputs |= dict.fromkeys(("dfirst", "dsecond"), ((B, L, D), gate))
        outputs |= dict.fromkeys(PARTS, ((B, plan.parts, D), f32))
        outputs |= {"h1": ((B, P, D), f32), "dh0": ((B, P, D), f32)}
        saved = {"states": ((B, -(-L // INTERVAL), P, D), f32)}
        template = variant.template(x, plan.segments, plan.steps)
        template += [("X", variant.planes_x)]
        template += [("ADJOINT", adjoint)] if name == "aggregate" else []
        # runs in x: CUDA takes at most 65,535 blocks in the other axes
        grid = (WIDTH * B * plan.parts, plan.segments * -(-D // WIDTH), 1)
        arrays = ARGUMENTS[name]
        used = {*arrays[0], *arrays[1]} - variant.absent
        return self.launch(name, arrays, used, x, {**outputs, **saved}, template, grid)

    def launch(
        self,
        name: str,
        arrays: Arguments,
        used: set[str],
        x: Mapping[str, mx.array],
        outputs: Outputs,
        template: Template,
        grid: tuple[int, int, int],
    ) -> Arrays:
        """Launch the kernel of a file of this name; return the outputs that are used."""
        segments = int(dict(template)["S"])  # type: ignore[arg-type]
        self.compiled.add((name, *(value for _, value in template)))
        found = self._built(name, arrays, segments)(
            inputs=[x[n] if n in used and n in x else placeholder() for n in arrays[0]],
            template=template,
            grid=grid,
            threadgroup=(WIDTH, segments, 1),
            output_shapes=[outputs[n][0] if n in used else (1,) for n in arrays[1]],
            output_dtypes=[outputs[n][1] for n in arrays[1]],
        )
        return {n: array for n, array in zip(arrays[1], found, strict=True) if n in used}

    def _built(self, name: str, arrays: Arguments, segments: int) -> Launch:
        def text(*names: str) -> str:
            return "".join((Path(__file__).parent / name).read_text() for name in names)

        if (name, segments) not in self._kernels:
            has_heads = name.startswith("heads")
            header = ["common.inc", "heads.inc"] if has_heads else ["common.inc"]
            position = "heads_position.inc" if has_heads else "position.inc"
            lines = f"#define GL_SEGMENTS {segments}\n"
            self._kernels[name, segments] = self.factory(
                name=f"gateloop_{name}",
                input_names=arrays[0],
                output_names=arrays[1],
                header=lines + text(f"prelude.{self.platform}", *header),
                source=text(f"entry.{self.platform}", position, f"{name}.inc"),
            )
        return self._kernels[name, segments]


def run(kernels: Kernels, name: Pass, variant: Variant, cut: Plan, x: Arrays) -> Arrays:
    """Run a pass; in parts, after a launch that computes the effect of each."""
    if cut.parts > 1:
        part, arrays, adjoint = variant, x, name == "backward"
        if adjoint:  # the effect on the gradient of a state
            sources = ("dy", "dz") if variant.planes_x else ("q", "dy")
            arrays = x | {"k": x[sources[0]], "v": x.get(sources[1], x["k"])}
            part = replace(variant, planes_x=variant.planes_x and variant.planes)
        x = x | kernels.max_headed("aggregate", part, cut, arrays, adjoint)
    return kernels.max_headed(name, variant, cut, x)


@cache
def placeholder() -> mx.array:
    return mx.array([0.0] * 8)  # fewer numbers would be of another type on Metal
