"""Clang, with address spaces, takes the Metal kernels and refuses what Apple's compiler would."""

import mlx.core as mx
import pytest
from harness import syntax
from harness.mlx_text import mlx_text
from harness.variants import HEADS, SMALL, VARIANTS, launch, launch_heads, metal_texts

pytestmark = pytest.mark.skipif(
    syntax.absence() is not None, reason=f"no check by clang: {syntax.absence()}"
)


@pytest.mark.parametrize("shape", [(2, 100, 40), SMALL])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels(variant, shape):
    assert [syntax.complaints(text) for text in metal_texts(launch, variant, shape)] == [[]] * 3


@pytest.mark.parametrize("variant", HEADS)
def test_the_kernels_of_heads(variant):
    assert [syntax.complaints(text) for text in metal_texts(launch_heads, variant)] == [[]] * 5


def check(source, header="", dtype=mx.float32):
    names = {"input_names": ["x"], "output_names": ["y"]}
    kernel = {"name": "test", "source": source, "header": header, **names}
    call = {"grid": (8, 1, 1), "threadgroup": (8, 1, 1), "output_shapes": [(8,)]}
    return syntax.complaints(mlx_text(kernel, [mx.zeros(8)], output_dtypes=[dtype], **call))


GOOD = """
    threadgroup float s[32];
    const uint i = thread_position_in_grid.x;
    s[i] = first(x + i);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = metal::exp(0.5f * s[31 - i]);
"""
FIRST = "inline float first(const device float* p) { return *p; }\n"
BAD = {
    "write to an input": ("x[0] = 1;", "", "not assignable"),
    "other memory": ("threadgroup float s[1]; y[0] = first(s);", FIRST, "no matching function"),
    "thread memory": ("float t = 0; device float* p = &t; y[0] = *p;", "", "'device float *'"),
    "double literal": ("y[0] = x[0] * 0.5;", "", "'double'"),
}


def test_a_good_kernel():
    assert check(GOOD, FIRST) == []


@pytest.mark.parametrize("what", BAD)
def test_bad_kernels(what):
    source, header, complaint = BAD[what]
    assert complaint in check(source, header)[0]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rounding_to_half_types_is_written_out(dtype):
    assert "loses floating-point precision" in check("y[0] = x[0];", dtype=dtype)[0]
    name = {mx.float16: "half", mx.bfloat16: "bfloat"}[dtype]
    assert check(f"y[0] = static_cast<{name}>(x[0]);", dtype=dtype) == []
