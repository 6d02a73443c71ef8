"""NVIDIA's compiler takes the CUDA kernels, and they fit into a processor."""

import re

import pytest
from harness import cuda_kernel, instructions, nvrtc, sass
from harness.variants import VARIANTS, composed, slow

from mlx_gateloop.ops.gpu.plans import Plan

pytestmark = pytest.mark.skipif(
    nvrtc.absence() is not None, reason=f"no compiler for CUDA: {nvrtc.absence()}"
)
SHAPE = (2, 100, 40)


def slow_plan(plan):
    return pytest.param(plan, marks=pytest.mark.slow)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels(variant):
    check(variant, "90", Plan(8))


@pytest.mark.parametrize(
    ("architecture", "plan"),
    [("80", Plan(8)), *(("90", plan) for plan in (Plan(16), Plan(4), Plan(8, fold=True)))],
    ids=str,
)
@pytest.mark.parametrize("variant", [VARIANTS[0], *map(slow, VARIANTS[1:])])
def test_another_architecture_and_other_plans(variant, architecture, plan):
    check(variant, architecture, plan)


@pytest.mark.skipif(sass.absence() is not None, reason=f"no disassembler: {sass.absence()}")
@pytest.mark.parametrize("plan", [instructions.PLANS[0], *map(slow_plan, instructions.PLANS[1:])])
@pytest.mark.parametrize("name", ["sigmoid", "real", "scan"])
def test_no_kernel_takes_more_instructions_than_were_counted(name, plan):
    table = instructions.recorded()
    if table is None:
        pytest.skip(f"{instructions.TABLE.name} is of another compiler than {nvrtc.version()}")
    (case,) = (case for case in VARIANTS if case.id == name)
    for key, tile, steps, _ in instructions.counted(case, plan):
        assert len(tile) / steps <= 1.05 * table[key], (
            "if it must be so, `make kernels` counts again"
        )


def check(variant, architecture, plan):
    for kernel, call in composed("cuda", cuda_kernel, variant, SHAPE, plan):
        compiled = nvrtc.compiled(kernel.composed(call), f"sm_{architecture}")
        print(f"\nsm_{architecture} {kernel.text.name} {variant[0]}, {plan}: ", end="")
        print(f"{compiled.registers} registers, {compiled.spilled_bytes} bytes spilled, ", end="")
        print(f"{compiled.shared_bytes} bytes shared")
        assert f".target sm_{architecture}" in compiled.ptx
        assert compiled.registers <= 128  # the prelude demands it, at the price of what is spilled
        assert compiled.spilled_bytes == 0
        assert compiled.shared_bytes <= 32 * 1024
        assert "bar.sync" in compiled.ptx
        assert compiled.shared_bytes > 0


@pytest.mark.skipif(sass.absence() is not None, reason=f"no disassembler: {sass.absence()}")
def test_addresses_that_are_computed_twice_would_be_noticed():
    kernel, call = composed("cuda", cuda_kernel, VARIANTS[0].values[0], SHAPE)[-1]
    text = kernel.composed(call)
    before, after = (
        len(sass.each_tile(nvrtc.compiled(source, "sm_90").cubin))
        for source in (text, re.sub(r'asm\("" .*', "(void)0", text))
    )
    assert after > 1.05 * before


@pytest.mark.skipif(sass.absence() is not None, reason=f"no disassembler: {sass.absence()}")
def test_detours_for_huge_numbers_are_not_counted():
    loop = "for (int i = 0; i < n; ++i) y[i] = {}(y[i]);"
    source = '__global__ void f(float* y, int n) {{ _Pragma("unroll 1") {} }}'
    fast, slow = (
        sass.each_tile(nvrtc.compiled(source.format(loop.format(name)), "sm_90").cubin)
        for name in ("__sinf", "sinf")
    )
    assert 4 < len(fast) < len(slow) < 50  # 139 with the detour
    assert sum(name.startswith("LDG") for name in slow) == 1


def test_figures():
    source = "__global__ void f(float* y) { __shared__ float s[99]; s[threadIdx.x] = *y; "
    source += "__syncthreads(); *y = s[98 - threadIdx.x]; }"
    small = nvrtc.compiled(source, "sm_90")
    assert small.shared_bytes == 4 * 99
    assert 0 < small.registers < 32
    assert small.spilled_bytes == 0


def test_spills_are_seen():
    load = " ".join(f"float a{i} = y[{i}];" for i in range(200))
    store = " ".join(f"y[{i}] = a{199 - i} * t;" for i in range(200))
    source = f"__global__ void __launch_bounds__(1024) f(float* y) {{ {load} float t = 0; "
    source += f"for (int i = 0; i < 200; ++i) t += expf(t); __syncthreads(); {store} }}"
    assert nvrtc.compiled(source, "sm_90").spilled_bytes > 0


def test_a_kernel_that_does_not_compile():
    with pytest.raises(RuntimeError, match="no_such_thing"):
        nvrtc.compiled("__global__ void f() { no_such_thing(); }", "sm_90")
