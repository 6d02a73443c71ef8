"""`gateloop doctor`: this machine's backends, what is missing, and how to get it."""

import argparse
import json
import os
import platform
import shutil
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_gateloop import _blas
from mlx_gateloop.io import extras
from mlx_gateloop.io.machine import blas_in_use
from mlx_gateloop.ops.backends import BACKENDS
from mlx_gateloop.ops.cpu import MLX_VERSION, NOT_INSTALLED, why_missing


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=lambda arguments: print(report()))


def report() -> str:
    """List machine, packages, extras, backends, the BLAS, and commands that fix what is missing."""
    built, reason = _build_info(), why_missing()
    rows = [
        ("platform", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("processors", str(os.cpu_count())),
        ("Python", platform.python_version()),
        ("mlx", f"{MLX_VERSION}, on {mx.default_device()}"),
        ("mlx-lm", extras.installed("mlx-lm") or "not installed"),
        ("gateloop", extras.installed("mlx-gateloop") or "not installed"),
        *(
            (f"[{extra}]", f"incomplete: {extras.absent(extra, no)}" if no else "installed")
            for extra, no in extras.missing().items()
        ),
        ("cpu", f"absent: {reason}" if reason else f"present, built with {built.COMPILER}"),
        *(
            (gpu, f"absent: {no}" if (no := BACKENDS[gpu].why_missing()) else "present")
            for gpu in ("metal", "cuda")
        ),
        ("BLAS", blas_in_use()),
    ]
    lines = [f"{name:12}{text}" for name, text in rows]
    fixes = _fixes()
    return "\n".join([*lines, "", "to fix it:", *(f"  {c}" for c in fixes)] if fixes else lines)


def print_what_is_missing() -> None:
    """Print one line if this machine could be faster; `make` does so after installing."""
    if _fixes():
        reason = why_missing() or blas_in_use()
        print(f"note: this machine could be faster: {reason}; see .venv/bin/gateloop doctor")


def _fixes() -> list[str]:
    """The commands that install what is missing."""
    if sys.platform != "linux":
        return []
    pip = f"{sys.executable} -m pip install"
    again = f"{pip} --force-reinstall --no-deps --no-cache-dir {_source()}"
    built = _build_info()
    if why_missing() == NOT_INSTALLED:
        return [f"{pip} -e {Path(__file__).parents[2]}    (or run from another directory)"]
    if why_missing() and built and built.MLX_VERSION not in ("", MLX_VERSION):
        return [f'{pip} "mlx[cpu]=={built.MLX_VERSION}"']
    if why_missing():
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        return [again] if compiler else ["sudo apt install g++    (or your system's)", again]
    if _blas.reason in (_blas.NOT_BUILT, _blas.DAMAGED):
        return [again]
    if _blas.reason == _blas.OTHER_NUMPY:
        return [f"{pip} --force-reinstall --no-deps --only-binary :all: numpy"]
    return []


def _source() -> str:
    try:
        text = distribution("mlx-gateloop").read_text("direct_url.json")
    except PackageNotFoundError:
        return "."
    if not text:
        return "mlx-gateloop"
    origin = json.loads(text)
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return editable + origin["url"].removeprefix("file://")


def _build_info() -> Any:
    try:
        return import_module("mlx_gateloop._build_info")
    except (ImportError, SyntaxError):
        return None
