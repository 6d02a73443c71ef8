"""Bridge from MLX's Linux wheel, which comes with the reference BLAS, to NumPy's OpenBLAS.

libmlx looks up its `cblas_*gemm` when it is loaded, so `mlx.core` must be imported after this.
"""

import ctypes
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

library = ""  # the OpenBLAS library that computes MLX's matrix products
reason = ""  # or the reason why MLX computes them itself
NOT_BUILT = "the bridge was not built"
DAMAGED = "the bridge does not load"
OTHER_BLAS = "another BLAS is loaded globally"
OTHER_NUMPY = "NumPy's wheel does not hold the one OpenBLAS known here"


def connect(package: Iterable[str]) -> None:
    """Connect the bridge once, and never raise; `library` or `reason` hold the result."""
    global library, reason
    if not (library or reason):
        try:
            library, reason = _connect(package)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"


def limit_threads(count: int) -> None:
    """Let the library use at most so many threads, also when it was loaded for more processors."""
    if library:
        openblas = ctypes.CDLL(library)
        if openblas.scipy_openblas_get_num_threads64_() > count:
            openblas.scipy_openblas_set_num_threads64_(count)


def _connect(package: Iterable[str]) -> tuple[str, str]:
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return "", "the bridge is for Linux on x86-64 and aarch64"
    if os.environ.get("MLX_GATELOOP_BLAS") == "off":
        return "", "MLX_GATELOOP_BLAS=off"
    if "mlx.core" in sys.modules:
        return "", "MLX was imported first: import mlx_gateloop before mlx"
    files = [Path(folder) / "ops/cpu/libmlx_gateloop_blas.so" for folder in package]
    if not (bridges := [str(file) for file in files if file.exists()]):
        return "", NOT_BUILT
    if hasattr(ctypes.CDLL(None), "cblas_sgemm"):
        return "", OTHER_BLAS
    numpy = find_spec("numpy")
    # Only an installed package: a numpy.py beside the user's script is another.
    folders = [Path(place).parent for place in (numpy and numpy.submodule_search_locations) or ()]
    found = [
        str(file)
        for folder in folders
        if folder.name in ("site-packages", "dist-packages")
        for file in (folder / "numpy.libs").glob("libscipy_openblas64_*.so")
    ]
    if len(found) != 1:
        return "", OTHER_NUMPY
    # Into the global scope only when connected, so that libmlx never finds unconnected functions.
    try:
        connect_to = ctypes.CDLL(bridges[0]).mlx_gateloop_blas_connect
    except (OSError, AttributeError):
        return "", DAMAGED
    # After a product OpenBLAS's threads spin for 2 ** 26 cycles before they sleep, on cores that
    # MLX's next operation needs; 2 ** 18 is a tenth of a millisecond. The variable is read when the
    # library is loaded: no effect if NumPy was imported before.
    if spin := "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
        os.environ["OPENBLAS_THREAD_TIMEOUT"] = "18"
    try:
        failed = connect_to(os.fsencode(found[0]))
    finally:
        if spin:
            del os.environ["OPENBLAS_THREAD_TIMEOUT"]
    if failed:
        return "", f"{Path(found[0]).name} is not the OpenBLAS known here"
    ctypes.CDLL(bridges[0], mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
    return found[0], ""
