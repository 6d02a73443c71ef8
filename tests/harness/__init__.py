"""Runs the text of GPU kernels on a CPU, one fiber for each thread, and watches what they do."""

from harness.compose import Call
from harness.kernel import Kernel, KernelFault, Launch, cuda_kernel, metal_kernel, recorded
from harness.toolchain import absence

__all__ = [
    "Call",
    "Kernel",
    "KernelFault",
    "Launch",
    "absence",
    "cuda_kernel",
    "metal_kernel",
    "recorded",
]
