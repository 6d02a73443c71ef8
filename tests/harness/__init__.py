"""Runs the text of GPU kernels on a CPU, one fiber for each thread, and watches what they do."""

from harness.kernel import KernelFault, cuda_kernel, metal_kernel, recorded
from harness.toolchain import absence

__all__ = ["KernelFault", "absence", "cuda_kernel", "metal_kernel", "recorded"]
