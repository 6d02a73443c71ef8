"""Counts what the CUDA kernels cost: `make kernels` keeps the table in benchmarks/results/."""

from math import prod
from pathlib import Path

import pytest

from harness import nvrtc, sass
from harness import recorded as watch
from harness.platforms import OBSERVED
from harness.variants import HEADS, VARIANTS, heads_plans, launch, launch_heads, texts
from mlx_gateloop.ops.gpu.launch_config import Plan

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "kernels.md"
ARCHITECTURE = "sm_90"
MORE = 1.05  # times the instructions in the table: another compiler's, or a change to look at
WHOLE = (1, 128, 32)  # no lane and no step is idle
PLANS = (Plan(8), Plan(16))
HEAD = """# The kernels, counted

NVIDIA's compiler makes this of each kernel for {architecture}: `make kernels`, NVRTC {version}.
Instructions are those that a thread issues for an element, on the common path; bytes those that an
element moves at L = 128; barriers those of a tile of S R steps; registers those of a thread;
shared those bytes of a threadgroup.

With heads a thread has 16 numbers of a state; in the gradient 4, or 8 of a real one. Instructions
are there those of a step, the loops in a tile once; a tile of the gradient has 4 R steps.

| kernel | variant | S | R | instructions | bytes | barriers | registers | spilled | shared |
|---|---|---|---|---|---|---|---|---|---|
"""


def counted(case, plan):
    """The kernels of a variant: the row's first cells, instructions of a tile, steps, the rest."""
    for name, text in texts("cuda", launch, case.values[0], WHOLE, plan):
        compiled = nvrtc.compiled(text, ARCHITECTURE)
        name = name.removeprefix("gateloop_")
        key = name, str(case.id), str(plan.segments), str(plan.steps)
        yield key, sass.each_tile(compiled.cubin), plan.steps, compiled


def counted_heads(case, tasks=()):
    """The same of a variant with heads, for each task or these."""
    plans = heads_plans(case.values[0][0].is_complex, 16)
    found = texts("cuda", launch_heads, case.values[0], 16)
    for (task, plan), (_, text) in zip(plans.items(), found, strict=True):
        if tasks and task not in tasks:
            continue
        compiled, steps = nvrtc.compiled(text, ARCHITECTURE), plan.steps(task)
        key = f"heads, {task}", str(case.id), str(plan.segments), str(steps)
        counted = steps * (4 if task == "backward" else 1)
        yield key, sass.each_tile(compiled.cubin), counted, compiled


def rows(case, plan):
    with watch() as launches:
        launch(OBSERVED["cuda"], case.values[0], WHOLE, plan)
    for (key, tile, steps, found), done in zip(counted(case, plan), launches, strict=True):
        moved = sum((*done.read.values(), *done.written.values())) / prod(WHOLE)
        yield row(key, tile, steps, found, f"{moved:.2f}")


def row(key, tile, steps, found, moved=""):
    barriers = sum(instruction.startswith("BAR") for instruction in tile)
    rest = barriers, found.registers, found.spilled_bytes, found.shared_bytes
    return *key, f"{len(tile) / steps:.1f}", moved, *rest


def recorded():
    """The instructions by a row's first cells; None if they are of another compiler."""
    text = TABLE.read_text()
    if f"NVRTC {nvrtc.version()}.\n" not in text:
        return None
    lines = text.partition("|---|")[2].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1], row[2], row[3]): float(row[4]) for row in cells}


def grown(kernels):
    """The kernels that take 5% more instructions than the table says, and how many."""
    if (table := recorded()) is None:
        pytest.skip(f"{TABLE.name} is of another compiler than {nvrtc.version()}")
    found = {key: len(tile) / steps for key, tile, steps, _ in kernels}
    return {key: count for key, count in found.items() if count > MORE * table[key]}


if __name__ == "__main__":
    every = [line for case in VARIANTS for plan in PLANS for line in rows(case, plan)]
    every += [row(*kernel) for case in HEADS for kernel in counted_heads(case)]
    table = "".join(f"| {' | '.join(map(str, row))} |\n" for row in every)
    TABLE.write_text(HEAD.format(version=nvrtc.version(), architecture=ARCHITECTURE) + table)
