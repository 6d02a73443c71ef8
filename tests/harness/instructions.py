"""Counts what the CUDA kernels cost: `make kernels` keeps the table in benchmarks/results/."""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from harness import cuda_kernel, nvrtc, sass
from harness import recorded as watch
from harness.variants import VARIANTS, composed, launch
from mlx_gateloop.ops.gpu.plans import Plan

Key = tuple[str, str, str, str, str]  # kernel, variant, S, R, join

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "kernels.md"
ARCHITECTURE = "sm_90"
MORE = 1.05  # times the instructions in the table: another compiler's, or a change to look at
WHOLE = (1, 128, 32)  # no lane and no step is idle
PLANS = (Plan(8), Plan(16), Plan(8, fold=True))
HEAD = """# The kernels, counted

NVIDIA's compiler makes this of each kernel for {architecture}: `make kernels`, NVRTC {version}.
Instructions are those that a thread issues for an element, on the common path; bytes those that an
element moves at L = 128; barriers those of a tile of S R steps; registers those of a thread;
shared those bytes of a threadgroup. The segments of a tile are joined by Hillis and Steele's scan,
or by a fold, of whose part a thread takes half on average.

| kernel | variant | S | R | join | instructions | bytes | barriers | registers | spilled | shared |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def counted(
    case: Any, plan: Plan, edit: Callable[[str], str] = str
) -> Iterator[tuple[Key, list[str], int, nvrtc.Compiled]]:
    """The kernels of a variant: the row's first cells, instructions of a tile, steps, the rest."""
    for kernel, call in composed("cuda", cuda_kernel, case.values[0], WHOLE, plan):
        compiled = nvrtc.compiled(edit(kernel.composed(call)), ARCHITECTURE)
        name, join = kernel.text.name.removeprefix("gateloop_"), "fold" if plan.fold else "scan"
        key = name, str(case.id), str(plan.segments), str(plan.steps), join
        yield key, sass.each_tile(compiled.cubin), plan.steps, compiled


def rows(case: Any, plan: Plan) -> Iterator[tuple[object, ...]]:
    """The rows of a variant in the table."""
    with watch() as launches:
        launch("cuda", cuda_kernel, case.values[0], WHOLE, plan)
    kernels = counted(case, plan)
    for (key, tile, steps, found), done in zip(kernels, launches, strict=True):
        moved = sum((*done.read.values(), *done.written.values())) / prod(WHOLE)
        barriers = sum(instruction.startswith("BAR") for instruction in tile)
        per_element = f"{len(tile) / steps:.1f}", f"{moved:.2f}"
        rest = barriers, found.registers, found.spilled_bytes, found.shared_bytes
        yield *key, *per_element, *rest


def recorded() -> dict[Key, float] | None:
    """The instructions by a row's first cells; None if they are of another compiler."""
    text = TABLE.read_text()
    if f"NVRTC {nvrtc.version()}.\n" not in text:
        return None
    lines = text.partition("|---|")[2].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1], row[2], row[3], row[4]): float(row[5]) for row in cells}


def grown(case: Any, plan: Plan, edit: Callable[[str], str] = str) -> dict[Key, float]:
    """The kernels of a variant that take 5% more instructions than the table says, and how many.

    Args:
        case: One of `VARIANTS`.
        plan: One of `PLANS`.
        edit: A change of the kernels' text.
    """
    table = recorded()
    if table is None:
        pytest.skip(f"{TABLE.name} is of another compiler than {nvrtc.version()}")
    found = {key: len(tile) / steps for key, tile, steps, _ in counted(case, plan, edit)}
    return {key: count for key, count in found.items() if count > MORE * table[key]}


if __name__ == "__main__":
    every = [row for case in VARIANTS for plan in PLANS for row in rows(case, plan)]
    table = "".join(f"| {' | '.join(map(str, row))} |\n" for row in every)
    TABLE.write_text(HEAD.format(version=nvrtc.version(), architecture=ARCHITECTURE) + table)
