"""Clang, with address spaces, takes the Metal kernels and refuses what Apple's compiler would."""

import re

import mlx.core as mx
import pytest
from harness import toolchain
from harness.mlx_text import mlx_text
from harness.variants import HEADS, SMALL, VARIANTS, launch, launch_heads, texts

cindex = pytest.importorskip("clang.cindex")
missing = toolchain.no_compiler()
pytestmark = pytest.mark.skipif(missing is not None, reason=str(missing))
OPTIONS = ["-std=c++17", "--target=x86_64-linux-gnu", "-nostdinc", "-Wall", "-Wextra"]
OPTIONS += ["-Wconversion", "-Wdouble-promotion", "-Wno-unknown-attributes"]
OPTIONS += ["-Wno-unused-parameter", "-Wno-sign-conversion", "-Wno-sign-compare"]
OPTIONS += ["-Wno-implicit-int-conversion", "-Wno-shorten-64-to-32", "-Wno-unused-variable"]


def complaints(text):
    text = toolchain.preprocess(text)
    # Where clang differs: it wants no attributes of its own here, and what is in an address space
    # must be static.
    text = re.sub(r"template \[\[host_name[^\]]*\]\] \[\[kernel\]\]", "template", text)
    text = re.sub(r"\bthreadgroup\s+[\w:]+\s+\w+\s*[\[;]", r"static \g<0>", text)
    files = [("kernel.cpp", (toolchain.HERE / "syntax.h").read_text() + text)]
    unit = cindex.Index.create().parse("kernel.cpp", args=OPTIONS, unsaved_files=files)
    return [d.spelling for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Warning]


@pytest.mark.parametrize("shape", [(2, 100, 40), SMALL])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels(variant, shape):
    assert [complaints(text) for _, text in texts("metal", launch, variant, shape)] == [[]] * 3


@pytest.mark.parametrize("variant", HEADS)
def test_the_kernels_of_heads(variant):
    assert [complaints(text) for _, text in texts("metal", launch_heads, variant)] == [[]] * 5


HEADER = "inline float first(const device float* p) { return *p; }\n"
BAD = {
    "write to an input": ("x[0] = 1;", "not assignable"),
    "other memory": ("threadgroup float s[1]; y[0] = first(s);", "no matching function"),
    "thread memory": ("float t = 0; device float* p = &t; y[0] = *p;", "'device float *'"),
    "double literal": ("y[0] = x[0] * 0.5;", "'double'"),
    "half": ("y[0] = x[0];", "loses floating-point precision", mx.float16),
    "bfloat": ("y[0] = x[0];", "loses floating-point precision", mx.bfloat16),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_kernels(what):
    source, complaint, *dtypes = BAD[what]
    names = {"input_names": ["x"], "output_names": ["y"]}
    kernel = {"name": "test", "source": source, "header": HEADER, **names}
    call = {"grid": (8, 1, 1), "threadgroup": (8, 1, 1), "output_shapes": [(8,)]}
    text = mlx_text(kernel, [mx.zeros(8)], output_dtypes=dtypes or [mx.float32], **call)
    assert complaint in complaints(text)[0]
