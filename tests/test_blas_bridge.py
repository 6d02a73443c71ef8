"""The bridge multiplies as BLAS says, MLX uses it, and nothing that is amiss with it is fatal."""

import ctypes
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.interpreter import python

HOOK = sys.modules.get("_mlx_gateloop_hook")
SHIM = Path(HOOK.__file__).parent / "mlx_gateloop/ops/native/libmlx_gateloop_blas.so"
if not SHIM.exists():
    pytest.skip("no bridge: not Linux, or no compiler", allow_module_level=True)

ROW, COLUMN, PLAIN, TRANSPOSED, CONJUGATED = 101, 102, 111, 112, 113
SHAPES = [(1, 5, 3), (5, 1, 3), (1, 1, 4), (1, 4, 1), (3, 4, 5), (1, 3, 0), (3, 1, 0), (2, 0, 3)]
KINDS = {"s": np.float32, "d": np.float64, "c": np.complex64}


@pytest.fixture(scope="module")
def bridge():
    numpy_libs = Path(np.__file__).parent.parent / "numpy.libs"
    (openblas,) = numpy_libs.glob("libscipy_openblas64_*.so")
    bridge = ctypes.CDLL(str(SHIM))
    assert bridge.mlx_gateloop_blas_connect(os.fsencode(openblas)) == 0
    return bridge


def stored(x, order, transpose, padding):
    """The rows in memory of a matrix, each followed by padding, and their distance."""
    x = x if transpose == PLAIN else x.T.conj() if transpose == CONJUGATED else x.T
    x = x if order == ROW else x.T
    rows = np.full((x.shape[0], x.shape[1] + padding), 7, x.dtype)
    rows[:, : x.shape[1]] = x
    return rows, max(1, rows.shape[1])


def multiply(bridge, kind, order, transpose_a, transpose_b, a, b, c, alpha, beta):
    """The result of the bridge for alpha A B + beta C."""
    (m, k), n = a.shape, b.shape[1]
    pointer = ctypes.c_void_p
    scalar = {"s": ctypes.c_float, "d": ctypes.c_double}.get(kind)
    rows_a, lda = stored(a, order, transpose_a, 2)
    rows_b, ldb = stored(b, order, transpose_b, 1)
    rows_c, ldc = stored(c, order, PLAIN, 3)
    complex_scalars = np.array([alpha, beta], np.complex64)
    alpha, beta = (
        (scalar(alpha), scalar(beta))
        if scalar
        else (pointer(complex_scalars.ctypes.data), pointer(complex_scalars.ctypes.data + 8))
    )
    getattr(bridge, f"cblas_{kind}gemm")(
        *(order, transpose_a, transpose_b, m, n, k, alpha, pointer(rows_a.ctypes.data), lda),
        *(pointer(rows_b.ctypes.data), ldb, beta, pointer(rows_c.ctypes.data), ldc),
    )
    assert (rows_c[:, rows_c.shape[1] - 3 :] == 7).all(), "wrote beside the matrix"
    result = rows_c[:, : rows_c.shape[1] - 3]
    return result if order == ROW else result.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_numpy(bridge, kind, shape):
    (m, n, k), rng = shape, np.random.default_rng(0)

    def draw(*size):
        x = rng.normal(size=size) + (1j * rng.normal(size=size) if kind == "c" else 0)
        return x.astype(KINDS[kind])

    transposes = (PLAIN, TRANSPOSED, CONJUGATED)
    scalars = [(1, 0), (0.5, 2)] if kind != "c" else [(1, 0), (0.5 - 1j, 2j)]
    for order, ta, tb, (alpha, beta) in itertools.product(
        (ROW, COLUMN), transposes, transposes, scalars
    ):
        a, b, c = draw(m, k), draw(k, n), draw(m, n)
        expected = alpha * (a @ b) + beta * c
        if beta == 0:
            c[:] = np.nan  # MLX's result is memory that nobody has written
        result = multiply(bridge, kind, order, ta, tb, a, b, c, alpha, beta)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_every_product_is_counted(bridge):
    before = bridge.mlx_gateloop_blas_calls()
    one = np.ones((1, 1), np.float32)
    multiply(bridge, "s", ROW, PLAIN, PLAIN, one, one, one, 1, 0)
    assert bridge.mlx_gateloop_blas_calls() == before + 1


def test_another_library_is_not_connected(bridge):
    other = ctypes.CDLL(str(SHIM))
    assert other.mlx_gateloop_blas_connect(b"/nowhere.so") == 1
    assert other.mlx_gateloop_blas_connect(b"libm.so.6") == 2


USE = """
import ctypes, sys
import mlx.core as mx
x = mx.ones((4, 4))
assert (x @ x).sum().item() == 64
hook = sys.modules["_mlx_gateloop_hook"]
count = getattr(ctypes.CDLL(None), "mlx_gateloop_blas_calls", lambda: 0)()
print(bool(hook.blas), hook.no_blas, count, sep="|")
"""


@pytest.mark.parametrize("order", ["", "import numpy; numpy.ones((9, 9)) @ numpy.ones((9, 9))"])
def test_mlx_uses_it(order):
    assert python(f"{order}\n{USE}\nimport numpy; numpy.ones((9, 9)) @ numpy.ones((9, 9))") == (
        "True||1"
    )


def test_the_switch_turns_it_off():
    assert python(USE, MLX_GATELOOP_BLAS="off") == "False|MLX_GATELOOP_BLAS=off|0"


AMISS = {
    "hook.__file__ = '/nowhere/hook.py'": "the bridge was not built",
    "sys.platform = 'darwin'": "the bridge is for Linux on x86-64 and aarch64",
    "pathlib.Path.glob = lambda *_: 1 / 0": "ZeroDivisionError: division by zero",
    "sys.modules['numpy'] = None": "NumPy's wheel does not hold the one OpenBLAS known here",
    "pathlib.Path.glob = lambda *_: []": "NumPy's wheel does not hold the one OpenBLAS known here",
    "pathlib.Path.glob = lambda *_: [pathlib.Path('libm.so.6')]": (
        "libm.so.6 is not the OpenBLAS known here"
    ),
}


@pytest.mark.parametrize(("what", "reason"), AMISS.items())
def test_whatever_is_amiss_is_told_and_not_fatal(what, reason):
    before = f"import sys, pathlib; hook = sys.modules['_mlx_gateloop_hook']; {what}"
    assert python(f"{before}\n{USE}") == f"False|{reason}|0"


@pytest.mark.parametrize("name", ["numpy.py", "numpy/__init__.py"])
def test_another_numpy_brings_no_library(tmp_path, name):
    numpy = tmp_path / "here" / name
    numpy.parent.mkdir(parents=True)
    numpy.touch()
    for folder in (tmp_path, tmp_path / "here"):
        (folder / "numpy.libs").mkdir()
        (folder / "numpy.libs" / "libscipy_openblas64_.so").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'here')!r})\n{USE}"
    assert python(code) == "False|NumPy's wheel does not hold the one OpenBLAS known here|0"


def test_an_interrupt_leaves_the_environment_as_it_was():
    code = """
import ctypes, os, sys
hook = sys.modules["_mlx_gateloop_hook"]
class Library:
    def __init__(self, *_, **__): pass
    def mlx_gateloop_blas_connect(self, _):
        assert "OPENBLAS_THREAD_TIMEOUT" in os.environ
        raise KeyboardInterrupt
ctypes.CDLL, before = Library, dict(os.environ)
try:
    hook.open_blas()
except KeyboardInterrupt:
    print("interrupted", before == dict(os.environ))
"""
    assert python(code) == "interrupted True"


def test_another_blas_that_is_loaded_globally_stays():
    code = f"""
import ctypes, _mlx_gateloop_hook as hook
ctypes.CDLL({str(SHIM)!r}, mode=ctypes.RTLD_GLOBAL)
hook.open_blas()
print(repr(hook.blas), hook.no_blas)
"""
    assert python(code) == "'' another BLAS is loaded globally"


# -S leaves out every folder of installed packages: the hook's and those of what it needs.
FOLDERS = [Path(__file__).parent, Path(HOOK.__file__), Path(np.__file__).parent]
WITHOUT_PTH = f"import sys; sys.path += {[str(folder.parent) for folder in FOLDERS]}"


def test_the_package_opens_it_where_no_pth_ran():
    assert python(f"{WITHOUT_PTH}\nimport mlx_gateloop\n{USE}", "-S") == "True||1"


def test_mlx_that_was_imported_first_keeps_its_own():
    code = f"{WITHOUT_PTH}\nimport mlx.core, mlx_gateloop\n{USE}"
    assert python(code, "-S") == "False|MLX was imported first|0"


def test_a_forked_process_multiplies_too():
    code = """
import mlx.core as mx, numpy as np, multiprocessing, sys
x = np.ones((300, 300), np.float32)
x @ x
def product(_):
    return float((x @ x)[0, 0]) + (mx.array(x) @ mx.array(x))[0, 0].item()
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(product, range(4)))
"""
    flags = ("-W", "ignore::DeprecationWarning")
    assert python(code, *flags, OPENBLAS_NUM_THREADS="2") == str([600.0] * 4)


def test_the_environment_is_left_as_it_was():
    code = "import os; e = dict(os.environ); import mlx.core; print(e == dict(os.environ))"
    assert python(code) == "True"
    assert python(code, OPENBLAS_THREAD_TIMEOUT="20") == "True"
