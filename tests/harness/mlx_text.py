"""The text that MLX itself composes of a Metal kernel; any build of MLX prints it."""

import ctypes
import os
import sys
import tempfile
from pathlib import Path

import mlx.core as mx


def mlx_text(kernel, inputs, **call):
    """The source in full, of a kernel and a call with these arguments; exporting needs no GPU."""
    function = mx.fast.metal_kernel(**kernel)

    def traced(*arrays):
        return function(inputs=list(arrays), verbose=True, stream=mx.gpu, **call)

    with tempfile.TemporaryDirectory() as directory:
        printed = Path(directory) / "printed"
        sys.stdout.flush()
        kept = os.dup(1)
        try:
            with printed.open("wb") as file:
                os.dup2(file.fileno(), 1)  # MLX prints from C++
            mx.export_function(str(Path(directory) / "exported.mlxfn"), traced, *inputs)
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        return printed.read_text().split("```\n", 1)[1].rsplit("\n```", 1)[0]
