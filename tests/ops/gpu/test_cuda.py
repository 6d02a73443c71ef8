"""NVIDIA's compiler takes the CUDA kernels, and they fit into a processor."""

import pytest
from harness import cuda_kernel, nvrtc
from harness.variants import VARIANTS, composed, slow

pytestmark = pytest.mark.skipif(
    nvrtc.absence() is not None, reason=f"no compiler for CUDA: {nvrtc.absence()}"
)
SHAPE = (2, 100, 40)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels(variant):
    check(variant, "90", 16)


@pytest.mark.parametrize(("architecture", "segments"), [("80", 16), ("90", 8)])
@pytest.mark.parametrize("variant", [VARIANTS[0], *map(slow, VARIANTS[1:])])
def test_another_architecture_and_smaller_tiles(variant, architecture, segments):
    check(variant, architecture, segments)


def check(variant, architecture, segments):
    for kernel, call in composed("cuda", cuda_kernel, variant, SHAPE, segments):
        compiled = nvrtc.compiled(kernel.composed(call), f"sm_{architecture}")
        print(f"\nsm_{architecture} {kernel.text.name} {variant[0]}, {segments} segments: ", end="")
        print(f"{compiled.registers} registers, {compiled.spilled_bytes} bytes spilled, ", end="")
        print(f"{compiled.shared_bytes} bytes shared")
        assert f".target sm_{architecture}" in compiled.ptx
        assert compiled.registers <= 128  # the prelude demands it, at the price of what is spilled
        assert compiled.spilled_bytes == 0
        assert compiled.shared_bytes <= 32 * 1024
        waits = "aggregate" not in kernel.text.name
        assert ("bar.sync" in compiled.ptx) == (compiled.shared_bytes > 0) == waits


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
