"""Stands in for `mx.fast.metal_kernel` and `mx.fast.cuda_kernel`, on the CPU under observation."""

import ctypes
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from harness import toolchain
from harness.compose import Text
from harness.translate import cpu_source

SHARED_LIMITS = {"metal": 32 * 1024, "cuda": 48 * 1024}
MAX_THREADS = 1024
MAX_BLOCKS = 65_535  # CUDA's limit in y and z
_ONE_LAUNCH = threading.Lock()  # the fibers' scheduler is a global


class KernelFault(RuntimeError):
    """Something a kernel did that it may not do."""


@dataclass(frozen=True)
class Launch:
    name: str
    read: dict[str, int]  # bytes of each device array
    written: dict[str, int]
    shared_bytes: int  # threadgroup memory


_recording = []


@contextmanager
def recorded():
    """The launches of a `with` block, in order."""
    launches = []
    _recording.append(launches)
    try:
        yield launches
    finally:
        _recording.remove(launches)


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("name", ctypes.c_char_p),
        ("space", ctypes.c_int), ("cells", ctypes.c_void_p),
        ("read", ctypes.c_uint64), ("written", ctypes.c_uint64),
    )  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = (
        ("arrays", ctypes.POINTER(_Array)),
        ("outputs", ctypes.POINTER(ctypes.c_uint8)),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("kernel", ctypes.c_void_p), ("n", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3), ("group", ctypes.c_uint32 * 3),
        ("shared_limit", ctypes.c_uint64), ("shared_bytes", ctypes.c_uint64),
        ("errors", ctypes.c_char_p), ("errors_size", ctypes.c_uint64),
    )  # fmt: skip


class Kernel:
    """A kernel that runs on the CPU, on row-contiguous inputs; made and called as MLX's own are."""

    def __init__(self, platform, *text, sanitized=False, **named):
        self.platform, self.sanitized, self.text = platform, sanitized, Text(*text, **named)

    def __call__(self, inputs, **options):
        """The outputs. Like MLX's kernels this has no rule of its own for vjp, jvp and vmap."""
        if reason := toolchain.absence():
            pytest.skip(f"kernels cannot run on this CPU: {reason}")
        operator = mx.custom_function(lambda *arrays: tuple(self._run(arrays, **options)))
        for rule in ("vjp", "jvp", "vmap"):

            def missing(*_, rule=rule):
                raise ValueError(f"[Primitive::{rule}] Not implemented for CustomKernel.")

            getattr(operator, rule)(missing)
        return list(operator(*(x if isinstance(x, mx.array) else mx.array(x) for x in inputs)))

    def _run(self, inputs, *, grid, threadgroup, output_shapes, output_dtypes, template=()):
        if np.prod(threadgroup) > MAX_THREADS:
            raise KernelFault(f"a threadgroup has {MAX_THREADS} threads at most")
        call = inputs, output_dtypes, template
        source = cpu_source(self.platform, self.text, *call, observed=not self.sanitized)
        kernel = toolchain.kernel(source, self.sanitized)
        arrays: list[tuple[str, np.ndarray]] = []
        for name, array in zip(self.text.input_names, inputs, strict=True):
            array = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
            arrays.append((name, np.array(array, copy=True, order="C").reshape(-1)))
            if name in self.text.shapes():
                arrays.append((f"{name}_shape", np.array(array.shape, np.int32)))
        outputs = []
        for shape, dtype in zip(output_shapes, output_dtypes, strict=True):
            name = "uint16" if dtype == mx.bfloat16 else str(dtype).removeprefix("mlx.core.")
            outputs.append(np.full(int(np.prod(shape)) * dtype.size, 0xFF, np.uint8).view(name))
        named = zip(self.text.output_names, outputs, strict=True)
        self._launch(kernel, [*arrays, *named], len(arrays), grid, threadgroup)
        found = zip(outputs, output_shapes, output_dtypes, strict=True)
        return [mx.array(array.reshape(shape)).view(dtype) for array, shape, dtype in found]

    def _launch(self, kernel, arrays, first_output, grid, threadgroup):
        blocks = [n // size for n, size in zip(grid, threadgroup, strict=True)]
        # Where it does not divide, Metal makes the last threadgroups smaller, and CUDA does not.
        assert blocks == [n / size for n, size in zip(grid, threadgroup, strict=True)]
        if self.platform == "cuda" and max(blocks[1:]) > MAX_BLOCKS:
            raise KernelFault(f"a grid has {MAX_BLOCKS} blocks at most in y and z")
        n, errors = len(arrays), ctypes.create_string_buffer(4096)
        parts = (_Array(a.ctypes.data, a.nbytes, name.encode()) for name, a in arrays)
        observed = (_Array * n)(*parts)
        arguments = _Launch(
            observed, (ctypes.c_uint8 * n)(*(i >= first_output for i in range(n))),
            (ctypes.c_uint32 * n)(*(a.itemsize for _, a in arrays)),
            ctypes.cast(kernel, ctypes.c_void_p), n, (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*threadgroup), SHARED_LIMITS[self.platform], 0,
            ctypes.cast(errors, ctypes.c_char_p), len(errors),
        )  # fmt: skip
        with _ONE_LAUNCH:
            toolchain.runtime(self.sanitized).launch(ctypes.byref(arguments))
        if errors.value:
            raise KernelFault(f"{self.text.name}: {errors.value.decode().strip()}")
        # shapes are no device arrays
        seen = {a.name.decode(): a for a in observed if not a.name.endswith(b"_shape")}
        read = {name: array.read for name, array in seen.items()}
        written = {name: array.written for name, array in seen.items()}
        done = Launch(self.text.name, read, written, arguments.shared_bytes)
        for launches in _recording:
            launches.append(done)


metal_kernel, cuda_kernel = partial(Kernel, "metal"), partial(Kernel, "cuda")
