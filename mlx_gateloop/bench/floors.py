"""Lower bounds for the time of a scan: a plain loop in C, and a copy of the bytes it moves."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_gateloop.bench.measure import Contender, Run, mlx_run

SOURCE = """
static void step(long width, const float *ar, const float *ai, const float *xr, const float *xi,
                 const float *pr, const float *pi, float *restrict hr, float *restrict hi) {
  for (long d = 0; d < width; d++) {
    hr[d] = ar[d] * pr[d] - ai[d] * pi[d] + xr[d];
    hi[d] = ar[d] * pi[d] + ai[d] * pr[d] + xi[d];
  }
}

void scan(long batch, long length, long width, const float *ar, const float *ai, const float *xr,
          const float *xi, const float *zero, float *hr, float *hi) {
  for (long b = 0, i = 0; b < batch; b++)
    for (long n = 0; n < length; n++, i += width)
      step(width, ar + i, ai + i, xr + i, xi + i, n ? hr + i - width : zero,
           n ? hi + i - width : zero, hr + i, hi + i);
}
"""
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]


@cache
def compiled() -> ctypes.CDLL | None:
    """Compile the C loop to a library; None without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "scan.c", Path(folder) / "scan.so"
        source.write_text(SOURCE)
        command = [compiler, *FLAGS, str(source), "-o", str(library)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return None
        return ctypes.CDLL(str(library))


def c_loop(ar: np.ndarray, ai: np.ndarray, xr: np.ndarray, xi: np.ndarray) -> Run | None:
    """Run h_n = a_n h_{n-1} + x_n on one thread over float32 planes `[B, L, D]`; None without C.

    The output memory is allocated before.
    """
    library = compiled()
    if library is None:
        return None
    hr, hi = np.empty_like(xr), np.empty_like(xi)
    zero = np.zeros(xr.shape[2], np.float32)
    pointers = [ctypes.c_void_p(p.ctypes.data) for p in (ar, ai, xr, xi, zero, hr, hi)]
    sizes = [ctypes.c_long(size) for size in xr.shape]

    def loop() -> tuple[np.ndarray, np.ndarray]:
        library.scan(*sizes, *pointers)
        return hr, hi

    return loop


def device_copy(moved: int) -> Contender:
    """Copy in the memory of MLX's default device: half of `moved` bytes are read, half written."""
    if mx.default_device().type == mx.cpu:
        return Contender(memory_copy(moved), is_mlx=False)
    source = mx.ones(moved // 8)
    return Contender(mlx_run(mx.negative, source))  # mx.array.copy would copy nothing


def memory_copy(moved: int) -> Run:
    """Copy with NumPy: half of `moved` bytes are read, half written."""
    source = np.ones(moved // 2, np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)
