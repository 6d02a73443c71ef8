"""The gate's sine and cosine, computed by the kernels themselves."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from harness import cuda_kernel, metal_kernel

from mlx_gateloop.ops.gpu import operator as gpu

DIRECTORY = Path(gpu.__file__).parent
FACTORIES = {"metal": metal_kernel, "cuda": cuda_kernel}
SOURCE = """
  if (seg == 0) {
    const int i = run * 32 + lane;
    const gl_complex a = gl_polar(size[i], phase[i]);
    re[i] = a.re;
    im[i] = a.im;
  }
"""


def polar(platform, size, phase):
    """size exp(i phase) of arrays of a multiple of 32 numbers, as complex128."""
    prelude, common, entry = (
        (DIRECTORY / name).read_text()
        for name in (f"prelude.{platform}", "common.inc", f"entry.{platform}")
    )
    kernel = FACTORIES[platform](
        "polar", ["size", "phase"], ["re", "im"], entry + SOURCE, prelude + common
    )
    re, im = kernel(
        inputs=[mx.array(size), mx.array(phase)], grid=(phase.size, 1, 1), threadgroup=(32, 1, 1),
        output_shapes=[phase.shape] * 2, output_dtypes=[mx.float32] * 2,
    )  # fmt: skip
    return np.array(re).astype(np.float64) + 1j * np.array(im).astype(np.float64)


def uniform(limit, count=8192):
    return np.random.default_rng(0).uniform(-limit, limit, count).astype(np.float32)


@pytest.mark.parametrize("platform", FACTORIES)
@pytest.mark.parametrize("limit", [1e-3, 1, 10, 1e4, 1e6])
def test_sine_and_cosine_to_a_rounding(platform, limit):
    phase = uniform(limit)
    found = polar(platform, np.ones_like(phase), phase)
    wanted = np.exp(1j * phase.astype(np.float64))
    assert abs(found.real - wanted.real).max() <= 8e-8
    assert abs(found.imag - wanted.imag).max() <= 8e-8
    assert abs((abs(found) - 1).mean()) <= 3e-9  # or thousands of steps would grow or shrink
    if limit <= 1:  # slow rotations are exact for their size
        assert (abs(found.imag - wanted.imag) <= 1e-7 * abs(wanted.imag)).all()


@pytest.mark.parametrize("platform", FACTORIES)
def test_phases_without_a_meaning_keep_the_size(platform):
    phase = np.concatenate([uniform(limit, 1024) for limit in (1e7, 1e9, 1e20, 3e38)])
    assert abs(abs(polar(platform, np.full_like(phase, 0.5), phase)) - 0.5).max() <= 5e-7


@pytest.mark.parametrize("platform", FACTORIES)
def test_a_phase_that_is_no_number_gives_none(platform):
    phase = np.array([np.nan, np.inf, -np.inf, 0] * 8, np.float32)
    assert (np.isnan(polar(platform, np.ones_like(phase), phase)) == (phase != 0)).all()
    assert not polar(platform, np.zeros_like(phase), uniform(10, 32)).any()  # a reset
