"""Compiles CUDA kernels with NVIDIA's own compiler, as MLX does; no GPU is needed."""

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import toolchain

PACKAGES = {  # directories, and what pip calls them
    "cuda_nvrtc": "nvidia-cuda-nvrtc-cu12",
    "cuda_runtime": "nvidia-cuda-runtime-cu12",
    "cuda_cccl": "nvidia-cuda-cccl-cu12",
}


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code, and what it takes: registers of a thread, bytes of a block, bytes
    that a thread stores and loads for want of registers."""

    cubin: bytes
    registers: int
    shared_bytes: int
    spilled_bytes: int


def absence():
    missing = [package for name, package in PACKAGES.items() if not _package(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


@cache
def compiled(source, architecture):
    """A composed CUDA source of one kernel, compiled for an architecture as "sm_90"."""
    nvrtc, program = _library(), ctypes.c_void_p()
    whole = (toolchain.HERE / "nvrtc.h").read_text() + source
    paths = [f"-I{_package(name)}/include" for name in PACKAGES]
    options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", "--std=c++17"]
    # NVIDIA's headers are parsed once
    options += ["-default-device", "--pch", f"--pch-dir={_scratch().name}", *paths]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), whole.encode(), b"kernel.cu", 0, None, None)
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = log.rstrip(b"\0").decode()
        if failed:
            raise RuntimeError(f"a CUDA kernel does not compile:\n{log[:4000]}")
        cubin = _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    (registers,) = re.findall(r"Used (\d+) registers", log)
    (stored, loaded) = re.findall(r"(\d+) bytes spill", log)
    shared = re.findall(r"(\d+) bytes smem", log) or [0]
    return Compiled(cubin, int(registers), int(shared[0]), int(stored) + int(loaded))


def _package(name):
    spec = find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    found = [Path(place) / name for place in places or [] if (Path(place) / name).is_dir()]
    return found[0] if found else None


@cache
def _scratch():
    return TemporaryDirectory()


@cache
def _library():
    directory = _package("cuda_nvrtc") / "lib"
    for path in directory.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(directory.glob("libnvrtc.so.*"))))


def version():
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _bytes(size_of, get, program):
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    get(program, found)
    return found.raw
