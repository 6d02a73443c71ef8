"""The origin of measurements: machine, versions, command, date."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import mlx.core as mx

from mlx_gateloop import __version__
from mlx_gateloop.commands.doctor import blas_in_use
from mlx_gateloop.commands.extras import installed
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.backends import BACKENDS

FASTEST_FIRST = ("metal", "cuda", "native", "ops")
PEERS = {"jax": "jax", "torch": "torch", "gateloop-transformer": "gateloop_transformer"}
PACKAGES = ("mlx", "mlx-lm", "numpy", *PEERS)


def header(command: str, own_cache: int, cache: int) -> str:
    """The table that opens a report.

    Args:
        command: The command line.
        own_cache: MLX's own cache limit, bytes.
        cache: The limit that the runs have, bytes.
    """
    limits = f"{cache >> 20:,} MB (MLX's own: {own_cache >> 20:,} MB)"
    return markdown_table(["", ""], [*facts(command).items(), ("MLX cache limit", limits)])


def facts(command: str) -> dict[str, str]:
    """The command, the date, the machine and the versions of a measurement."""
    peers = [f"{name} {version}" for name in PACKAGES if (version := installed(name))]
    device = mx.device_info().get("device_name", "") if mx.default_device().type == mx.gpu else ""
    return {
        "command": f"`{command}`",
        "date": now(),
        "CPU": f"{_cpu()}, {cores()} core{'s' * (cores() > 1)}, {_memory_gib():.0f} GiB",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "MLX device": f"{mx.default_device()} {device}".strip(),
        "versions": ", ".join([f"mlx-gateloop {__version__}{_commit()}", *peers]),
        "BLAS": blas_in_use(),
    }


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def absent_lines(peers: Sequence[str]) -> list[str]:
    """One line for each missing backend, and each missing one of these peers."""
    lines = [f"- no {name} backend: {why}" for name, why in _missing_backends().items()]
    lines += [
        f"- no {peer}: not installed (pip install -r requirements-bench.txt)"
        for peer in peers
        if not present(peer)
    ]
    return lines


def backends() -> list[str]:
    """The available backends of the scan, in the likely order of speed."""
    missing = _missing_backends()
    return [name for name in FASTEST_FIRST if name not in missing]


def present(peer: str) -> bool:
    return find_spec(PEERS[peer]) is not None


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _commit() -> str:
    """The commit of a checkout, in brackets; nothing for an installed package.

    It is that of the first call: what a process has imported stays when the checkout moves on.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not (git := which("git")):
        return ""

    def answer(*words: str) -> str:
        command = [git, "--no-optional-locks", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    if not (commit := answer("rev-parse", "--short", "HEAD")):
        return ""
    changed = answer("status", "--porcelain", "--untracked-files=no")
    return f" ({commit}{'-dirty' if changed else ''})"


def _missing_backends() -> dict[str, str]:
    return {name: why for name in FASTEST_FIRST if (why := BACKENDS[name].why_missing())}


def _cpu() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
