"""The bridge multiplies as BLAS says, MLX uses it, and nothing that is amiss with it is fatal."""

import ctypes
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.interpreter import python

import mlx_gateloop

FILES = [Path(folder, "ops/cpu/libmlx_gateloop_blas.so") for folder in mlx_gateloop.__path__]
BRIDGE = next((file for file in FILES if file.exists()), None)
if not BRIDGE:
    pytest.skip("no bridge: not Linux, or no compiler", allow_module_level=True)

ROW, COLUMN, PLAIN, TRANSPOSED, CONJUGATED = 101, 102, 111, 112, 113
SHAPES = [(1, 5, 3), (5, 1, 3), (1, 1, 4), (1, 4, 1), (3, 4, 5), (1, 3, 0), (3, 1, 0), (2, 0, 3)]
KINDS = {  # each type, and a number as BLAS takes it
    "s": (np.float32, ctypes.c_float),
    "d": (np.float64, ctypes.c_double),
    "c": (np.complex64, lambda x: (ctypes.c_float * 2)(x.real, x.imag)),
}


@pytest.fixture(scope="module")
def bridge():
    (openblas,) = Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*.so")
    bridge = ctypes.CDLL(str(BRIDGE))
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
    (m, k), n, scalar = a.shape, b.shape[1], KINDS[kind][1]
    rows_a, lda = stored(a, order, transpose_a, 2)
    rows_b, ldb = stored(b, order, transpose_b, 1)
    rows_c, ldc = stored(c, order, PLAIN, 3)
    getattr(bridge, f"cblas_{kind}gemm")(
        *(order, transpose_a, transpose_b, m, n, k, scalar(alpha), rows_a.ctypes, lda),
        *(rows_b.ctypes, ldb, scalar(beta), rows_c.ctypes, ldc),
    )
    assert (rows_c[:, rows_c.shape[1] - 3 :] == 7).all(), "wrote beside the matrix"
    result = rows_c[:, : rows_c.shape[1] - 3]
    return result if order == ROW else result.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_numpy_and_counted(bridge, kind, shape):
    (m, n, k), rng = shape, np.random.default_rng(0)

    def draw(*size):
        x = rng.normal(size=size) + (1j * rng.normal(size=size) if kind == "c" else 0)
        return x.astype(KINDS[kind][0])

    before, transposes = bridge.mlx_gateloop_blas_calls(), (PLAIN, TRANSPOSED, CONJUGATED)
    scalars = [(1, 0), (0.5, 2)] if kind != "c" else [(1, 0), (0.5 - 1j, 2j)]
    cases = list(itertools.product((ROW, COLUMN), transposes, transposes, scalars))
    for order, ta, tb, (alpha, beta) in cases:
        a, b, c = draw(m, k), draw(k, n), draw(m, n)
        expected = alpha * (a @ b) + beta * c
        if beta == 0:
            c[:] = np.nan  # MLX's result is memory that nobody has written
        result = multiply(bridge, kind, order, ta, tb, a, b, c, alpha, beta)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert bridge.mlx_gateloop_blas_calls() == before + len(cases)


USE = """
import ctypes
import mlx_gateloop
from mlx_gateloop import _blas
import mlx.core as mx
x = mx.ones((4, 4))
assert (x @ x).sum().item() == 64
count = getattr(ctypes.CDLL(None), "mlx_gateloop_blas_calls", lambda: 0)()
print(bool(_blas.library), _blas.reason, count, sep="|")
"""
NUMPY = "import numpy; numpy.ones((9, 9)) @ numpy.ones((9, 9))"


@pytest.mark.parametrize("first", ["", NUMPY])
def test_mlx_uses_it(first):
    assert python(f"{first}\n{USE}\n{NUMPY}") == "True||1"


def test_the_patch_is_necessary():
    """If this fails, MLX's wheel no longer brings the reference BLAS: remove the bridge."""
    assert list(Path(np.__file__).parents[1].glob("mlx_cpu.libs/libblas-*.so*"))


NO_NUMPY = "NumPy's wheel does not hold the one OpenBLAS known here"
AMISS = {
    "os.environ['MLX_GATELOOP_BLAS'] = 'off'": "MLX_GATELOOP_BLAS=off",
    "import mlx.core": "MLX was imported first: import mlx_gateloop before mlx",
    "pathlib.Path.exists = lambda _: False": "the bridge was not built",
    "sys.platform = 'darwin'": "the bridge is for Linux on x86-64 and aarch64",
    "pathlib.Path.glob = lambda *_: 1 / 0": "ZeroDivisionError: division by zero",
    "sys.modules['numpy'] = None": NO_NUMPY,
    "pathlib.Path.glob = lambda *_: []": NO_NUMPY,
    "pathlib.Path.glob = lambda *_: [pathlib.Path('m.so')]": "m.so is not the OpenBLAS known here",
    "pathlib.Path.glob = lambda *_: [pathlib.Path('libm.so.6')]": (
        "libm.so.6 is not the OpenBLAS known here"
    ),
}


@pytest.mark.parametrize(("what", "reason"), AMISS.items())
def test_whatever_is_amiss_is_the_reason_and_not_fatal(what, reason):
    assert python(f"import os, pathlib, sys; {what}\n{USE}") == f"False|{reason}|0"


def test_another_numpy_brings_no_library(tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    (tmp_path / "numpy.libs").mkdir()
    (tmp_path / "numpy.libs" / "libscipy_openblas64_.so").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    assert python(code) == f"False|{NO_NUMPY}|0"


def test_another_blas_that_is_loaded_globally_stays():
    code = f"import ctypes; ctypes.CDLL({str(BRIDGE)!r}, mode=ctypes.RTLD_GLOBAL)\n"
    code += "from mlx_gateloop import _blas; print(repr(_blas.library), _blas.reason)"
    assert python(code) == "'' another BLAS is loaded globally"


def test_a_forked_process_multiplies_too():
    code = """
import mlx_gateloop, mlx.core as mx, numpy as np, multiprocessing
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


@pytest.mark.parametrize("timeout", [{}, {"OPENBLAS_THREAD_TIMEOUT": "20"}])
def test_the_environment_is_left_as_it_was(timeout):
    code = "import os; e = dict(os.environ); import mlx_gateloop; print(e == dict(os.environ))"
    assert python(code, **timeout) == "True"


def test_threads_are_limited_and_never_added():
    code = """
import ctypes
from mlx_gateloop import _blas
for count in (2, 1, 3):
    _blas.limit_threads(count)
    print(ctypes.CDLL(_blas.library).scipy_openblas_get_num_threads64_())
"""
    assert python(code, OPENBLAS_NUM_THREADS="2").split() == ["2", "1", "1"]
