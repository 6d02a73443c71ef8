"""The first use of a kernel: MLX compiles it, and the GPU may reject it."""

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import mlx.core as mx

from mlx_gateloop.ops.gpu import launch_config
from mlx_gateloop.ops.gpu.kernels import INTERVAL, Arrays, Kernels, Variant, run
from mlx_gateloop.ops.gpu.launch_config import SEGMENTS, TILE, Pass, Plan

# Out-of-memory errors are transient; MLX's messages contain one of these. Compilers' errors are
# permanent, even if they are about a threadgroup's memory.
MAY_PASS = ("memory", "Memory", "allocate", "Resource limit")
COMPILERS = ("Unable to build", "Unable to load", "Failed to compile", "Failed to load")
NOTABLE = 2.0  # seconds of compilation that are reported


class KernelError(RuntimeError):
    """A kernel does not compile or does not run on this GPU."""


@cache
def warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=4)  # the line that called the public function


def check_counts(*numbers: int) -> None:
    """Raise a KernelError if the kernels' indices, of 32 bits, do not reach so many numbers."""
    if max(numbers) >= 2**31:
        what = "the kernels count the numbers of a sequence and of a state in 31 bits"
        raise KernelError(f"{what}; cut it, or name backend='mlx'")


def plan(kernels: Kernels, name: Pass, variant: Variant, x: Arrays) -> Plan:
    """Divide the work of a pass, into as many segments as this GPU takes."""
    B, L, D = x["first"].shape
    check_counts((L + TILE) * D)  # they count to the end of the last tile
    cut = launch_config.plan(kernels.cores, B, L, D)
    types = x["k"].dtype, x["first"].dtype
    trial = _Trial(kernels, name, variant, replace(cut, parts=min(cut.parts, 2)), types)
    return replace(cut, segments=accepted(kernels, trial, cut.segments))


def accepted(kernels: Kernels, trial: Callable[[int], Arrays], wanted: int) -> int:
    """Return the segments, at most those wanted, with which a trial runs; equal trials run once."""
    found = _accepted(kernels, trial, wanted)
    if isinstance(found, str):
        raise KernelError(f"a {kernels.platform} kernel fails: {found}")
    return found


@cache
def _accepted(kernels: Kernels, trial: Callable[[int], Arrays], wanted: int) -> int | str:
    """Return the segments, or why there are none; a transient error is raised, so not cached."""
    first_reason = ""
    for segments in (s for s in SEGMENTS if s <= wanted):
        begin = time.perf_counter()
        try:
            mx.eval(trial(segments))  # in a user's evaluation errors cannot be caught
        except (RuntimeError, ValueError) as error:
            text = str(error)
            lines = text.splitlines() or ["no reason given"]
            reason = next((line for line in lines if "error:" in line), lines[0]).strip()
            if any(t in text for t in MAY_PASS) and not any(t in text for t in COMPILERS):
                raise KernelError(f"a {kernels.platform} kernel fails: {reason}") from error
            first_reason = first_reason or reason
        else:
            _report_slow_compile(kernels, time.perf_counter() - begin)
            return segments
    return first_reason


@dataclass(frozen=True)
class _Trial:
    """The kernels of a pass on a few zeros."""

    kernels: Kernels
    name: Pass
    variant: Variant
    cut: Plan
    types: tuple[mx.Dtype, mx.Dtype]

    def __call__(self, segments: int) -> Arrays:
        # MLX passes fewer than 8 numbers differently: another kernel
        shape, P = (1, self.cut.parts * TILE, 8), self.variant.planes
        x = dict.fromkeys(("q", "k", "v", "dy", "dz"), mx.zeros(shape, self.types[0]))
        x |= dict.fromkeys(("first", "second"), mx.zeros(shape, self.types[1]))
        x |= {"mask": mx.zeros(shape[:2], mx.bool_)}
        x |= {"states": mx.zeros((1, shape[1] // INTERVAL, P, 8))}
        x |= dict.fromkeys(("h0", "dh1"), mx.zeros((1, P, 8)))
        return run(self.kernels, self.name, self.variant, replace(self.cut, segments=segments), x)


def _report_slow_compile(kernels: Kernels, seconds: float) -> None:
    """Print once that kernels take long to compile."""
    before = kernels.seconds
    kernels.seconds += seconds
    if before < NOTABLE <= kernels.seconds:
        print(
            f"mlx_gateloop: MLX compiled {len(kernels.compiled)} GPU kernels in "
            f"{kernels.seconds:.1f} s, as it does in every process (docs/backends.md)",
            file=sys.stderr,
        )
