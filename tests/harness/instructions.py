"""Counts what the CUDA kernels cost: `make kernels` keeps the table in benchmarks/results/."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from harness import cuda_kernel, nvrtc, sass
from harness import recorded as watch
from harness.variants import VARIANTS, composed, launch

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "kernels.md"
ARCHITECTURE = "sm_90"
WHOLE = (1, 128, 32)  # no lane and no step is idle
SEGMENTS = (8, 16)
HEAD = """# The kernels, counted

NVIDIA's compiler makes this of each kernel for {architecture}: `make kernels`, NVRTC {version}.
Instructions are those that a thread issues for an element, on the common path; bytes those that an
element moves at L = 128; barriers those of a tile of S R steps; registers those of a thread;
shared bytes those of a threadgroup.

| kernel | variant | S | R | instructions | bytes | barriers | registers | spilled | shared bytes |
|---|---|---|---|---|---|---|---|---|---|
"""


def counted(case: Any, segments: int) -> Iterator[tuple[str, list[str], int, nvrtc.Compiled]]:
    """The kernels of a variant: name, instructions of a tile, steps of a segment, the rest."""
    for kernel, call in composed("cuda", cuda_kernel, case.values[0], WHOLE, segments):
        compiled = nvrtc.compiled(kernel.composed(call), ARCHITECTURE)
        name = kernel.text.name.removeprefix("gateloop_")
        yield name, sass.each_tile(compiled.cubin), dict(call.template)["R"], compiled


def rows(case: Any, segments: int) -> Iterator[tuple[object, ...]]:
    """The rows of a variant in the table."""
    with watch() as launches:
        launch("cuda", cuda_kernel, case.values[0], WHOLE, segments)
    kernels = counted(case, segments)
    for (name, tile, steps, found), done in zip(kernels, launches, strict=True):
        moved = sum((*done.read.values(), *done.written.values())) / prod(WHOLE)
        barriers = sum(instruction.startswith("BAR") for instruction in tile)
        per_element = f"{len(tile) / steps:.1f}", f"{moved:.2f}"
        rest = barriers, found.registers, found.spilled_bytes, found.shared_bytes
        yield name, case.id, segments, steps, *per_element, *rest


def recorded() -> dict[tuple[str, str, int], float] | None:
    """The instructions of a kernel, variant and S in the table; None if of another compiler."""
    text = TABLE.read_text()
    if f"NVRTC {nvrtc.version()}.\n" not in text:
        return None
    lines = text.partition("|---|")[2].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1], int(row[2])): float(row[4]) for row in cells}


if __name__ == "__main__":
    every = [row for case in VARIANTS for segments in SEGMENTS for row in rows(case, segments)]
    table = "".join(f"| {' | '.join(map(str, row))} |\n" for row in every)
    TABLE.write_text(HEAD.format(version=nvrtc.version(), architecture=ARCHITECTURE) + table)
