import mlx.core as mx
import numpy as np
import pytest
from harness.platforms import PLATFORMS, kernels_of
from helpers import reference
from helpers.reference import as_numpy, error, needs_native

import mlx_gateloop as gl
from mlx_gateloop.ops import scan
from mlx_gateloop.ops.backends import BACKENDS
from mlx_gateloop.ops.gpu import operator as gpu


def random(rng, shape, is_complex, scale=1.0):
    x = rng.normal(size=shape) * scale
    x = x + 1j * rng.normal(size=shape) * scale if is_complex else x
    return mx.array(x.astype(np.complex64 if is_complex else np.float32))


def shifted(x, start, reverse):
    """Return the values of the step before, in the direction of the scan."""
    start = np.broadcast_to(start, x[:, 0].shape)[:, None]
    return np.concatenate([x[:, 1:], start] if reverse else [start, x[:, :-1]], 1)


def _mixtures():
    """Every pair of values, and on each CPU backend every mixture of real and complex arrays."""
    for i, length in enumerate([1, 2, 31, 32, 33, 63, 64, 65, 1000]):
        row = [bool(i & 1), bool(i & 2), bool(i & 4), i.bit_count() % 2 == 1]
        yield pytest.param("mlx", *row, length)
        yield pytest.param("stepwise", *row, length)
        yield pytest.param("cpu", *(not bit for bit in row), length, marks=needs_native)
    for platform in PLATFORMS:
        for i, length in enumerate([70, 70, 70, 70, 2100, 2100]):  # 2100 steps run in parts
            row = [bool(i & 1), bool(i & 2), i == 3, i % 4 < 2]
            name = f"{platform.id}-{i}"
            yield pytest.param(*platform.values, *row, length, marks=platform.marks, id=name)


@pytest.mark.parametrize(
    ("backend", "complex_a", "complex_x", "complex_h0", "reverse", "length"), list(_mixtures())
)
def test_states_and_gradients_are_the_loops(
    backend, complex_a, complex_x, complex_h0, reverse, length, monkeypatch
):
    if backend == "stepwise":  # as where one step covers many numbers
        backend = "mlx"
        monkeypatch.setattr(scan, "WIDE", 1)
        if mx.default_device().type == mx.cpu:
            monkeypatch.setattr(scan, "_scan_chunks", None)  # must not be reached
    elif backend not in BACKENDS:
        kernels, backend = kernels_of(backend), "metal"
        monkeypatch.setitem(BACKENDS, backend, BACKENDS[backend]._replace(why_missing=lambda: None))
        monkeypatch.setattr(gpu, "kernels", lambda _: kernels)
    rng, shape = np.random.default_rng(length), (2, length, 3, 2)
    is_complex = complex_a or complex_x or complex_h0
    a, x = random(rng, shape, complex_a, 0.5), random(rng, shape, complex_x)
    a = mx.where(mx.array(rng.uniform(size=shape) < 0.05), 0, a)
    h0, dh = random(rng, (2, 3, 2), complex_h0), random(rng, shape, is_complex)

    def run(*arrays):
        return [gl.linear_scan(*arrays, reverse=reverse, backend=backend)]

    (h,), found = mx.vjp(run, [a, x, h0], [dh])
    wide_a, wide_x, start, wide_dh = (as_numpy(z).astype(np.complex128) for z in (a, x, h0, dh))
    want = reference.scan(wide_a, wide_x, start, reverse)
    # G_n = dh_n + conj(a_{n+1}) G_{n+1}
    G = reference.scan(shifted(wide_a, 0, not reverse).conj(), wide_dh, 0, not reverse)
    first = -1 if reverse else 0
    gradients = shifted(want, start, reverse).conj() * G, G, wide_a[:, first].conj() * G[:, first]
    for got, exact, like, tolerance in zip(
        [h, *found], [want, *gradients], [dh, a, x, h0], (1e-6, 2e-6, 2e-6, 2e-6), strict=True
    ):
        assert got.dtype == like.dtype
        assert error(got, exact if got.dtype == mx.complex64 else exact.real) < tolerance
