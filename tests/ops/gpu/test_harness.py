"""The harness itself: for each of its detectors a kernel that trips it."""

import mlx.core as mx
import numpy as np
import pytest
from harness import KernelFault, metal_kernel
from helpers.reference import normal

SYNC = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def run(source):
    """The output `y` of a kernel with one input `x` of 64 numbers, each with a thread."""
    (y,) = metal_kernel("test", ["x"], ["y"], source)(
        inputs=[normal(64)], grid=(64, 1, 1), threadgroup=(64, 1, 1),
        output_shapes=[(64,)], output_dtypes=[mx.float32],
    )  # fmt: skip
    return np.array(y)


THREAD = "const uint i = thread_position_in_grid.x; "
SHARED = THREAD + "threadgroup float s[64]; s[i] = x[i]; "
RACE = r"race: (read beside write|write beside read) of "
BROKEN = {
    RACE + r"s\[1\]": SHARED + "y[i] = s[1];",
    r"race: two writes of s\[0\]": THREAD + "threadgroup float s[1]; s[0] = i; y[i] = x[i];",
    RACE + r"s\[\d+\]": SHARED + f"{SYNC} y[i] = s[(i + 1) % 64]; s[i] = 0;",
    RACE + "s": SHARED + "threadgroup_barrier(mem_flags::mem_device); y[i] = s[63 - i];",
    RACE + "s.4": SHARED + "simdgroup_barrier(mem_flags::mem_threadgroup); y[i] = s[40];",
    RACE + "s.*": SHARED + "simd_sum(s[i]); y[i] = s[i ^ 1];",
    "divergent barrier: only": THREAD + f"if (i < 9) {{ {SYNC} }} y[i] = simd_sum(x[i]);",
    "divergent barrier: threads": THREAD + f"if (i < 9) {{ {SYNC} }}\nelse {{ {SYNC} }}",
    "divergent barrier: some": THREAD + f"if (i > 60) return;\n {SYNC} y[i] = x[i];",
    "divergent simdgroup": THREAD + "if (i < 9) y[i] = simd_sum(x[i]);\n else simd_sum(x[i]);",
    r"uninitialised read of s\[": THREAD + "threadgroup float s[64]; y[i] = s[i];",
    r"uninitialised read of y\[": THREAD + "y[i] += x[i];",
    r"out of bounds: s\[64\] of 64": SHARED + "y[i] = s[64];",
    r"out of bounds: x\[64\] of 64": THREAD + "y[i] = x[i + 1];",
    r"out of bounds: y\[-1\] of 64": THREAD + "y[int(i) - 1] = x[i];",
    r"out of bounds: x_shape\[1\] of 1": THREAD + "y[i] = x_shape[1];",
    r"race: two writes of y\[0\]": THREAD + "y[0] = x[i];",
    RACE + "y": THREAD + "y[i] = x[i]; y[i] = y[63 - i];",
    "33024 bytes of threadgroup memory": SHARED + "threadgroup float t[8192]; t[i] = 1;",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_faults_are_found(fault):
    with pytest.raises(KernelFault, match=fault):
        run(BROKEN[fault])


def test_outputs_nobody_writes_are_nan():
    assert np.isnan(run(THREAD + "if (i < 3) y[i] = 1;")[3:]).all()
