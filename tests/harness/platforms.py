"""The kernels on a CPU under observation, and on the GPU where there is one."""

import pytest

from harness import cuda_kernel, metal_kernel
from mlx_gateloop.ops.gpu import operator as launcher
from mlx_gateloop.ops.gpu.kernels import Kernels

OBSERVED = {"metal": Kernels("metal", metal_kernel), "cuda": Kernels("cuda", cuda_kernel)}


def _on_gpu(platform):
    reason = launcher.why_missing(platform)
    skip = pytest.mark.skipif(reason is not None, reason=f"no {platform}: {reason}")
    return pytest.param((platform, True), marks=skip, id=f"{platform} GPU")


METAL_TEXT, CUDA_TEXT = (pytest.param((name, False), id=f"{name} text") for name in OBSERVED)
# CUDA's text is the same as Metal's but for its prelude and entry.
PLATFORMS = [METAL_TEXT, *map(_on_gpu, OBSERVED)]


def kernels_of(platform):
    name, on_gpu = platform
    return launcher.kernels(name) if on_gpu else OBSERVED[name]
