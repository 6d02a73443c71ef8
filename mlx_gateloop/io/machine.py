"""This machine: its share for a process, and its description for measurements."""

import ctypes
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from shutil import which

import mlx.core as mx

from mlx_gateloop import __version__, _blas
from mlx_gateloop.io.extras import installed

PACKAGES = ("mlx", "mlx-lm", "numpy", "jax", "torch", "gateloop-transformer", "fla-core")


def facts(command: str) -> dict[str, str]:
    """The command, the date, the machine and the versions of a measurement."""
    packages = [f"{name} {number}" for name in PACKAGES if (number := installed(name))]
    device = mx.device_info().get("device_name", "") if mx.default_device().type == mx.gpu else ""
    cpu = mx.device_info(mx.Device(mx.cpu))["device_name"]
    return {
        "command": f"`{command}`",
        "date": now(),
        "CPU": f"{cpu}, {cores()} core{'s' * (cores() > 1)}, {memory_bytes() / 2**30:.0f} GiB",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "MLX device": f"{mx.default_device()} {device}".strip(),
        "versions": ", ".join([f"mlx-gateloop {__version__}{_commit()}", *packages]),
        "BLAS": blas_in_use(),
    }


def blas_in_use() -> str:
    """Name the library that multiplies MLX's matrices on the CPU, checked with a product."""
    if sys.platform == "darwin":
        return "Accelerate, MLX's own"
    if not _blas.library:
        if _blas.reason == _blas.OTHER_BLAS:
            return "the one that is loaded globally"
        return f"MLX's own ({_blas.reason})"
    calls = ctypes.CDLL(None).mlx_gateloop_blas_calls  # the bridge is in the global scope
    before = calls()
    mx.eval(mx.matmul(mx.ones((8, 8)), mx.ones((8, 8)), stream=mx.cpu))
    if calls() == before:
        return "MLX's own (the bridge is open, but this MLX does not use it)"
    return f"NumPy's {Path(_blas.library).name}, through the bridge"


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def pin_cpus(index: int, count: int) -> None:
    """Pin this process and its threads to one of `count` shares of the processors (Linux)."""
    if sys.platform == "linux":
        every = sorted(os.sched_getaffinity(0))
        share = every[index * len(every) // count : (index + 1) * len(every) // count]
        share = share or [every[index % len(every)]]
        for thread in Path("/proc/self/task").iterdir():  # the BLAS has threads already
            os.sched_setaffinity(int(thread.name), share)
        _blas.limit_threads(len(share))


@cache
def _commit() -> str:
    """The commit of a checkout at the first call, in brackets; nothing for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not (git := which("git")):
        return ""
    command = [git, "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty"]
    command += ["--exclude", "*"]  # tags
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f" ({commit})" if commit else ""
