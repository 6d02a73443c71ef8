"""Runs the text of GPU kernels on a CPU, one fiber for each thread, and watches what they do."""

from metal.harness.compose import Call
from metal.harness.kernel import (
    Kernel,
    KernelFault,
    Launch,
    cuda_kernel,
    metal_kernel,
    recorded,
)
from metal.harness.toolchain import absence

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
