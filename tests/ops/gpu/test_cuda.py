"""NVIDIA's compiler takes the CUDA kernels, and they fit into a processor."""

import re

import pytest
from harness import cuda_kernel, instructions, nvrtc, sass
from harness.variants import HEADS, VARIANTS, composed, composed_heads, slow

from mlx_gateloop.ops.gpu.launch_config import Plan

pytestmark = pytest.mark.skipif(
    nvrtc.absence() is not None, reason=f"no compiler for CUDA: {nvrtc.absence()}"
)
SHAPE = (2, 100, 40)
SHORT = ("sigmoid", "real", "scan")
LIBRARY = "gl_complex{size * cosf(second), size * sinf(second)}"
SPILLED_ONCE = 64  # bytes, by kernels of heads while they read their first state


def slow_plan(plan):
    return pytest.param(plan, marks=pytest.mark.slow)


@pytest.mark.parametrize("variant", [v if v.id in SHORT else slow(v) for v in VARIANTS])
def test_the_kernels(variant):
    check(variant, "90", Plan(8))


@pytest.mark.parametrize(
    ("architecture", "plan"),
    [
        ("80", Plan(8)),
        ("90", Plan(8, fold=True)),
        *(pytest.param("90", Plan(size), marks=pytest.mark.slow) for size in (16, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", [VARIANTS[0], *map(slow, VARIANTS[1:])])
def test_another_architecture_and_other_plans(variant, architecture, plan):
    check(variant, architecture, plan)


def slow_case(case):
    return pytest.param(case, id=f"all of {case.id}", marks=pytest.mark.slow)


disassembled = pytest.mark.skipif(
    sass.absence() is not None, reason=f"no disassembler: {sass.absence()}"
)
CASES = [
    pytest.param(case, id=case.id, marks=[] if case.id in SHORT else pytest.mark.slow)
    for case in VARIANTS
]
EDITS = {
    "addresses computed twice": (r"asm\(.*\)", "(void)0"),
    "an exact division": (r"__fdividef\(x, y\)", "x / y"),
    "the library's sine": (r"gl_polar\(size, second\)", LIBRARY),
}
SHOWN = [n if n == "an exact division" else pytest.param(n, marks=pytest.mark.slow) for n in EDITS]


@disassembled
@pytest.mark.parametrize("plan", [instructions.PLANS[0], *map(slow_plan, instructions.PLANS[1:])])
@pytest.mark.parametrize("case", CASES)
def test_no_kernel_takes_more_instructions_than_were_counted(case, plan):
    grown = instructions.grown(instructions.counted(case, plan))
    assert grown == {}, "if it must be so, `make kernels` counts again"


@disassembled
@pytest.mark.parametrize("what", SHOWN)
def test_a_twentieth_more_is_noticed(what):
    old, new = EDITS[what]

    def edit(text):
        changed, times = re.subn(old, new, text)
        assert times
        return changed

    found = instructions.grown(instructions.counted(VARIANTS[0], instructions.PLANS[0], edit))
    assert {kernel for kernel, *_ in found} == {"aggregate", "forward", "backward"}


@disassembled
def test_loads_and_stores_are_of_global_or_shared_memory():
    for _, tile, _, _ in instructions.counted(VARIANTS[0], instructions.PLANS[0]):
        kinds = {name.split(".")[0] for name in tile}
        assert kinds >= {"LDG"}
        assert not kinds & {"LD", "ST"}  # of memory that may be either


@pytest.mark.parametrize("segments", [16, *map(slow_plan, (8, 4))])
@pytest.mark.parametrize("variant", [HEADS[0], *map(slow, HEADS[1:])])
def test_the_kernels_of_heads(variant, segments):
    found = composed_heads("cuda", cuda_kernel, variant, segments)
    for kernel, call in found[:: 4 if variant == HEADS[0].values[0] else 1]:  # the first and last
        compiled = nvrtc.compiled(kernel.composed(call), "sm_90")
        fits(compiled, "90", f"{kernel.text.name} {variant[0]}, {segments}", SPILLED_ONCE)


@disassembled
@pytest.mark.parametrize("case", [pytest.param(HEADS[0], id="short"), *map(slow_case, HEADS)])
def test_loops_of_heads(case):
    tasks = ("outputs", "backward") if case is HEADS[0] else ()
    kernels = list(instructions.counted_heads(case, tasks))
    for _, tile, _, _ in kernels:  # nothing is spilled in them, no memory may be of either kind
        assert not {name.split(".")[0] for name in tile} & {"LDL", "STL", "LD", "ST"}
    assert instructions.grown(iter(kernels)) == {}, "if it must be so, `make kernels` counts again"


def check(variant, architecture, plan):
    for kernel, call in composed("cuda", cuda_kernel, variant, SHAPE, plan):
        compiled = nvrtc.compiled(kernel.composed(call), f"sm_{architecture}")
        fits(compiled, architecture, f"{kernel.text.name} {variant[0]}, {plan}")


def fits(compiled, architecture, name, spilled=0):
    print(f"\nsm_{architecture} {name}: {compiled.registers} registers, ", end="")
    print(f"{compiled.spilled_bytes} bytes spilled, {compiled.shared_bytes} bytes shared")
    assert f".target sm_{architecture}" in compiled.ptx
    assert compiled.registers <= 128  # the prelude demands it, at the price of what is spilled
    assert compiled.spilled_bytes <= spilled
    assert compiled.shared_bytes <= 32 * 1024
    assert "bar.sync" in compiled.ptx
    assert compiled.shared_bytes > 0
