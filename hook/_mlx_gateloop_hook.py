"""What must happen when other packages are imported: two additions to mlx-lm, and MLX's BLAS.

Installed as a top-level module that a `.pth` file runs when Python starts: hence no imports here
but `sys`, and no work until somebody asks for one of the names.
"""

import sys

blas = ""  # the OpenBLAS library that MLX's matrix products go to
no_blas = ""  # or why they go nowhere else than MLX itself sends them
NO_SHIM = "the bridge was not built"
BAD_SHIM = "the bridge does not load"
OTHER_BLAS = "another BLAS is loaded globally"
OTHER_NUMPY = "NumPy's wheel does not hold the one OpenBLAS known here"


class GateLoopFinder:
    """A finder on `sys.meta_path` that finds what is ours and sees what is about to be imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if name == "mlx.core":
            open_blas()
        elif name in ("mlx_lm.models.gateloop", "mlx_lm.quant.awq"):
            try:
                from mlx_gateloop import _register
            except ImportError:  # the hook outlived the package
                return None
            return _register.find_spec(name, path)
        return None


def open_blas() -> None:
    """Give MLX's Linux wheel, which brings the reference BLAS, the OpenBLAS that NumPy brings.

    libmlx looks its `cblas_*gemm` up once, when it is loaded, and in the global scope first.
    Nothing here is needed, so nothing here may fail; `blas` or `no_blas` say what became of it.
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
    from importlib.util import find_spec

    if hasattr(ctypes.CDLL(None), "cblas_sgemm"):
        return "", OTHER_BLAS
    numpy = find_spec("numpy")
    folder = Path(numpy.origin).parent.parent / "numpy.libs" if numpy and numpy.origin else None
    found = sorted(folder.glob("libscipy_openblas64_*.so")) if folder else []
    if len(found) != 1:
        return "", OTHER_NUMPY
    # Into the global scope only when connected: libmlx must never find functions that lead nowhere.
    try:
        bridge = ctypes.CDLL(str(shim))
        connect = bridge.mlx_gateloop_blas_connect
    except (OSError, AttributeError):
        return "", BAD_SHIM
    # After a product, threads of OpenBLAS spin for 2 ** 26 cycles before they sleep, on cores that
    # MLX's next operation wants; 2 ** 18 is a tenth of a millisecond. Read when the library is
    # loaded: no effect where NumPy has been imported before MLX.
    if spin := "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
        os.environ["OPENBLAS_THREAD_TIMEOUT"] = "18"
    failed = connect(os.fsencode(found[0]))
    if spin:
        del os.environ["OPENBLAS_THREAD_TIMEOUT"]
    if failed:
        return "", f"{found[0].name} is not the OpenBLAS known here"
    ctypes.CDLL(str(shim), mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
    return str(found[0]), ""


sys.meta_path.insert(0, GateLoopFinder)
if "mlx.core" in sys.modules:  # no `.pth` file has run, mlx_gateloop imports this: too late
    open_blas()
