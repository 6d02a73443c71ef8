"""Every contender computes what float64 loops compute: the tables compare like with like."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import Case, error, forward, gradients, random_case

from mlx_gateloop.bench import floors, ops, peers
from mlx_gateloop.bench.blelloch import blelloch_scan, hillis_steele_scan, naive_loop
from mlx_gateloop.bench.machine import present

SHAPES = [(1, 1, 1), (2, 5, 3), (1, 8, 2), (2, 33, 5)]
MLX_SCANS = [blelloch_scan, hillis_steele_scan, naive_loop]


def states(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """h_n = a_n h_{n-1} + x_n in complex128."""
    h, result = np.zeros_like(x[:, 0], np.complex128), []
    for n in range(x.shape[1]):
        h = a[:, n] * h + x[:, n]
        result.append(h)
    return np.stack(result, 1)


def planes(shape: tuple[int, int, int]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    arrays = ops.scan_arrays(shape)[:4]
    ar, ai, xr, xi = (plane.astype(np.float64) for plane in arrays)
    return arrays, ar + 1j * ai, xr + 1j * xi


def test_the_loop_is_the_reference():
    case = replace(
        random_case(0, 7, masked=0), q=np.ones((2, 7, 5, 1)), h0=np.zeros((2, 5, 1, 1), complex)
    )
    x = (case.k * case.v)[..., 0]
    assert error(states(case.a[..., 0], x).real, forward(case)[0][..., 0]) < 1e-15


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scan", MLX_SCANS)
def test_mlx_scans(scan, shape):
    (ar, ai, xr, xi), a, x = planes(shape)
    real, imaginary = scan(
        tuple(map(mx.array, (ar, ai))),
        tuple(map(mx.array, (xr, xi))),
    )
    want = states(a, x)
    assert error(real, want.real) < 1e-6
    assert error(imaginary, want.imag) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.skipif(floors.compiled() is None, reason="this machine has no C compiler that works")
def test_c_loop(shape):
    arrays, a, x = planes(shape)
    run = floors.c_loop(*arrays)
    for _ in range(2):  # its memory is used again
        real, imaginary = run()
    assert error(real + 1j * imaginary, states(a, x)) < 1e-6


def test_gradients_of_scans_agree():
    """Ours, tested elsewhere, and autodiff's through the others."""
    *arrays, dr, di = ops.scan_arrays((2, 21, 3))
    scans = ops.our_scans(arrays, (dr, di)) | ops.mlx_scans(arrays, (dr, di))
    ours = next(iter(scans.values())).gradient()
    for contender in scans.values():
        if contender.gradient:
            for got, want in zip(contender.gradient(), ours, strict=True):
                assert error(got, np.array(want)) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch within itself
@pytest.mark.parametrize("name", ["jax", "gateloop-transformer"])
def test_peers_scan(name):
    if not present(name):
        pytest.skip(f"{name} is an optional install")
    arrays, a, x = planes((2, 21, 3))
    *_, dr, di = ops.scan_arrays((2, 21, 3))
    cotangent = (dr + 1j * di).astype(np.complex64)
    of_jax = name == "jax"
    scan = peers.jax_scan if of_jax else peers.torch_scan
    # what jax calls the gradient of a complex number is the conjugate of it
    given = cotangent.conj() if of_jax else cotangent
    contender = scan(a.astype(np.complex64), x.astype(np.complex64), given)
    assert error(np.array(contender.forward()), states(a, x)) < 1e-6
    da, dx = (np.array(array) for array in contender.gradient())
    ours = next(iter(ops.our_scans(arrays, (dr, di)).values())).gradient()
    ar, ai, xr, xi = (np.array(plane) for plane in ours)
    assert error(da.conj() if of_jax else da, ar + 1j * ai) < 1e-5
    assert error(dx.conj() if of_jax else dx, xr + 1j * xi) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch within itself
@pytest.mark.parametrize("name", ["ours", "jax", "gateloop-transformer"])
def test_operators(name):
    if name != "ours" and not present(name):
        pytest.skip(f"{name} is an optional install")
    shape = (2, 9, 3)
    contenders = ops.gate_loops(shape)
    chosen = {"ours": "ours", "jax": ops.JAX, "gateloop-transformer": ops.TORCH}[name]
    rng = np.random.default_rng(0)
    q, k, v, gamma, theta, dy = (
        rng.normal(size=shape).astype(np.float32).astype(np.float64)[..., None] for _ in range(6)
    )
    size = 1 / (1 + np.exp(-gamma))
    a, zero = size * np.exp(1j * theta), np.zeros((2, 3, 1, 1), np.complex128)
    case = Case(q, k, v, a, zero, np.ones(shape[:2], bool), dy, zero)
    want = gradients(case)
    moved = want["a"].conj() * a  # by log|a|: its real part; by arg a: minus the imaginary part
    expected = [want["q"], want["k"], want["v"], moved.real * (1 - size), -moved.imag]
    for label in (label for label in contenders if label.startswith(chosen)):
        y = contenders[label].forward()
        y = y[0] if name == "ours" else y
        assert error(np.array(y), forward(case)[0][..., 0]) < 1e-6
        for got, gradient in zip(contenders[label].gradient(), expected, strict=True):
            assert error(np.array(got), gradient[..., 0]) < 1e-5
