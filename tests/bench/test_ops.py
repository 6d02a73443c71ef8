"""Every candidate computes what float64 loops compute: the tables compare like with like."""

import numpy as np
import pytest
from helpers.reference import Case, error, forward, gradients, scan

from benchmarks import peers
from mlx_gateloop.bench import ops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from inside torch


def outputs(result):
    return [np.asarray(x) for x in (result if isinstance(result, list | tuple) else [result])]


def test_scans_agree():
    shape = (2, 21, 3)
    (ar, ai, xr, xi), _ = ops.scan_arrays(shape)
    want = scan(ar + 1j * ai, xr + 1j * xi)
    gradients_of = {}
    for name, candidate in ops.scans(shape, peers.rows).items():
        found = outputs(candidate.forward())
        h = found[0] + 1j * found[1] if candidate.is_mlx else found[0]
        assert error(h, want) < 1e-6, name
        found = outputs(candidate.gradient())
        if candidate.is_mlx:
            found = [found[0] + 1j * found[1], found[2] + 1j * found[3]]
        if "jax" not in name:  # its complex cotangent is the conjugate of torch's
            gradients_of[name] = found
    first, *others = gradients_of.values()
    for other in others:
        assert max(error(got, want) for got, want in zip(other, first, strict=True)) < 1e-5


def test_operators_agree():
    shape = (2, 9, 3)
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
    for name, candidate in ops.operators(shape, peers.rows).items():
        assert error(outputs(candidate.forward())[0], forward(case)[0][..., 0]) < 1e-6, name
        for got, gradient in zip(outputs(candidate.gradient()), expected, strict=True):
            assert error(got, gradient[..., 0]) < 1e-5, name


def test_candidates_with_heads_agree():
    shape = (1, 192, 2, 4, 6)
    kinds = (ops.with_heads(shape, kind, peers.rows) for kind in ("complex", "real"))
    for candidates in (*kinds, ops.one_gate(shape)):
        first, *others = candidates.values()
        for other in others:
            for mine, theirs in ((first.forward, other.forward), (first.gradient, other.gradient)):
                for got, want in zip(outputs(mine()), outputs(theirs()), strict=True):
                    assert error(got, want) < 1e-5
