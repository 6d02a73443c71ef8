"""The kernels under the address and undefined-behaviour sanitizers, with plain pointers."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from harness import absence, toolchain
from helpers.cases import first

TESTS = Path(__file__).parents[2]
# Edges of tiles and lanes, an input below 8 numbers, sequences in parts.
SHAPES = [(2, 100, 40), (1, 1, 33), (1, 65, 64), (1, 3, 2)]
RUN = """
from functools import partial
import harness
import mlx.core as mx
from harness.variants import VARIANTS, launch
from mlx_gateloop.ops.gpu import operator
from mlx_gateloop.ops.gpu.kernels import Kernels
from mlx_gateloop.ops.gpu.launch_config import Plan
from mlx_gateloop.ops.transition import Transition

kernels = Kernels({platform!r}, partial(getattr(harness, {platform!r} + "_kernel"), sanitized=True))
for variant in VARIANTS[:{variants}]:
    for shape in {shapes}:
        if len(shape) == 3:
            launch(kernels, variant.values[0], shape, Plan(8, -(-shape[1] // 64)))
            continue
        B, L, H, K, V = shape
        q, v = mx.ones((B, L, H, K)), mx.ones((B, L, H, V))
        mask = mx.broadcast_to(mx.arange(L) % 3 > 0, (B, L))
        a = Transition.sigmoid(q, q)
        run = lambda q, v: operator.gate_loop(kernels, q, q, v, a, None, mask, True)
        mx.eval(mx.vjp(run, [q, v], [v, mx.ones((B, 2, H, K, V))]))
print("clean")
"""
RUN_BROKEN = """
import mlx.core as mx
from harness import metal_kernel
source = "y[thread_position_in_grid.x + 1] = x[0];"
kernel = metal_kernel("broken", ["x"], ["y"], source, sanitized=True)
call = dict(grid=(64, 1, 1), threadgroup=(64, 1, 1))
kernel(inputs=[mx.ones(64)], output_shapes=[(64,)], output_dtypes=[mx.float32], **call)
"""


@cache
def sanitizer():
    """The library that has to be loaded first, or None."""
    if absence():
        return None
    printed = toolchain.compile_cpp(["-print-file-name=libasan.so"]).strip()
    return printed if Path(printed).is_absolute() else None


pytestmark = pytest.mark.skipif(
    sanitizer() is None, reason=absence() or "the compiler has no sanitizers"
)


def run(program):
    environment = dict(os.environ, LD_PRELOAD=sanitizer(), ASAN_OPTIONS="detect_leaks=0")
    environment["PYTHONPATH"] = str(TESTS)
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# Their text is the same but for a few lines.
@pytest.mark.parametrize(("platform", "variants", "shapes"), first(2, [
    ("metal", 1, SHAPES[-1:]), ("metal", 1, [(2, 35, 2, 9, 20)]),  # the second with heads
    ("metal", 9, SHAPES), ("cuda", 9, SHAPES), ("metal", 1, [(1, 770, 1, 3, 2)]),
]))  # fmt: skip
def test_the_kernels(platform, variants, shapes):
    done = run(RUN.format(platform=platform, variants=variants, shapes=shapes))
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr


def test_a_fault_is_found():
    done = run(RUN_BROKEN)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
