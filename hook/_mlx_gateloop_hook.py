"""Import hook for two additions to mlx-lm and for MLX's BLAS.

A `.pth` file runs this top-level module when Python starts, so it imports `sys` only and does no
work until one of the names is imported.
"""

import sys

blas = ""  # the OpenBLAS library that computes MLX's matrix products
no_blas = ""  # or the reason why MLX computes them itself
NO_SHIM = "the bridge was not built"
BAD_SHIM = "the bridge does not load"
OTHER_BLAS = "another BLAS is loaded globally"
OTHER_NUMPY = "NumPy's wheel does not hold the one OpenBLAS known here"


class GateLoopFinder:
    """A finder on `sys.meta_path` that finds our modules and prepares MLX's BLAS."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if name == "mlx.core":
            open_blas()
        elif name in ("mlx_lm.models.gateloop", "mlx_lm.quant.awq"):
            try:
                from mlx_gateloop import _register

                return _register.find_spec(name, path)
            except ImportError:  # the hook outlived the package
                pass
            except Exception as error:  # mlx-lm's own modules must load all the same
                import warnings

                warnings.warn(f"mlx_gateloop is not registered with mlx-lm: {error}", stacklevel=2)
        return None


def open_blas() -> None:
    """Give MLX's Linux wheel, which comes with the reference BLAS, NumPy's OpenBLAS.

    libmlx looks up its `cblas_*gemm` once, when it is loaded, in the global scope first. This is
    optional, so no error may escape; `blas` or `no_blas` hold the result.
    """
    global blas, no_blas
    if not (blas or no_blas):
        try:
            blas, no_blas = _bridge()
        except Exception as error:
            no_blas = f"{type(error).__name__}: {error}"


def _bridge() -> tuple[str, str]:
    import os
    from pathlib import Path

    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return "", "the bridge is for Linux on x86-64 and aarch64"
    if os.environ.get("MLX_GATELOOP_BLAS") == "off":
        return "", "MLX_GATELOOP_BLAS=off"
    if "mlx.core" in sys.modules:
        return "", "MLX was imported first"
    shim = Path(__file__).parent / "mlx_gateloop/ops/native/libmlx_gateloop_blas.so"
    if not shim.exists():
        return "", NO_SHIM

    import ctypes

    if hasattr(ctypes.CDLL(None), "cblas_sgemm"):
        return "", OTHER_BLAS
    found = _openblas_libraries()
    if len(found) != 1:
        return "", OTHER_NUMPY
    # Into the global scope only when connected, so that libmlx never finds unconnected functions.
    try:
        bridge = ctypes.CDLL(str(shim))
        connect = bridge.mlx_gateloop_blas_connect
    except (OSError, AttributeError):
        return "", BAD_SHIM
    # After a product OpenBLAS's threads spin for 2 ** 26 cycles before they sleep, on cores that
    # MLX's next operation needs; 2 ** 18 is a tenth of a millisecond. The variable is read when the
    # library is loaded: no effect if NumPy was imported before MLX.
    if spin := "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
        os.environ["OPENBLAS_THREAD_TIMEOUT"] = "18"
    try:
        failed = connect(os.fsencode(found[0]))
    finally:
        if spin:
            del os.environ["OPENBLAS_THREAD_TIMEOUT"]
    if failed:
        return "", f"{Path(found[0]).name} is not the OpenBLAS known here"
    ctypes.CDLL(str(shim), mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
    return found[0], ""


def _openblas_libraries() -> "list[str]":
    from importlib.util import find_spec
    from pathlib import Path

    numpy = find_spec("numpy")
    # Only an installed package: a numpy.py beside the user's script is another.
    folders = [Path(place).parent for place in (numpy and numpy.submodule_search_locations) or ()]
    return [
        str(library)
        for folder in folders
        if folder.name in ("site-packages", "dist-packages")
        for library in (folder / "numpy.libs").glob("libscipy_openblas64_*.so")
    ]


sys.meta_path.insert(0, GateLoopFinder)
if "mlx.core" in sys.modules:  # imported by mlx_gateloop, without a `.pth` file: too late
    open_blas()
