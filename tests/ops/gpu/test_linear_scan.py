"""The scan of the GPU kernels beside a float64 loop."""

import mlx.core as mx
import numpy as np
import pytest
from harness.platforms import METAL, kernels_of
from helpers.reference import error

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, plan


def states(a, x, h0, reverse):
    """h_n = a_n h_{n-1} + x_n, and the state before each step."""
    h, after, before = h0, np.zeros_like(x), np.zeros_like(x)
    for n in range(x.shape[1])[:: -1 if reverse else 1]:
        before[:, n] = h
        h = after[:, n] = a[:, n] * h + x[:, n]
    return after, before


def gradients(a, before, dh, reverse):
    """Of sum(Re h Re dh + Im h Im dh) by a, x and h0."""
    G, carry = np.zeros_like(dh), np.zeros_like(dh[:, 0])
    for n in range(a.shape[1])[:: 1 if reverse else -1]:
        G[:, n] = dh[:, n] + carry
        carry = np.conj(a[:, n]) * G[:, n]
    return G * np.conj(before), G, carry


def planes(x, count):
    return [mx.array(part.astype(np.float32)) for part in (x.real, x.imag)[:count]]


@pytest.mark.parametrize("platform", METAL)
@pytest.mark.parametrize(
    ("planes_a", "planes_x", "shape", "reverse"),
    [
        *((a, x, (2, 70, 3, 4), True) for a in (1, 2) for x in (1, 2)),
        (2, 1, (1, 2100, 2), True),
        (1, 2, (1, 2100, 2), False),
    ],
)
def test_states_and_gradients(platform, planes_a, planes_x, shape, reverse):
    count = max(planes_a, planes_x)
    if shape[1] > 1000:
        assert plan(DEFAULTS[platform[0]], "forward 32", 1, shape[1], shape[2]).parts > 1
    rng = np.random.default_rng(0)

    def values(shape, count):
        x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if count == 2 else 0)
        return x.astype(np.complex64).astype(np.complex128)

    a, x = 0.7 * values(shape, planes_a), values(shape, planes_x)
    a = a.astype(np.complex64).astype(np.complex128)
    a[rng.uniform(size=shape) < 0.05] = 0
    h0, dh = values((shape[0], *shape[2:]), count), values(shape, count)
    h, before = states(a, x, h0, reverse)

    def scan(*arrays):
        a, x, h0 = arrays[:planes_a], arrays[planes_a:-count], arrays[-count:]
        return gpu.linear_recurrence(kernels_of(platform), a, x, h0, reverse)

    arrays = [*planes(a, planes_a), *planes(x, planes_x), *planes(h0, count)]
    found, by = mx.vjp(scan, arrays, planes(dh, count))
    for got, want in zip(found, planes(h, count), strict=True):
        assert error(got, np.array(want)) <= 1e-6
    counts = (planes_a, planes_x, count)
    wanted = [
        plane
        for gradient, n in zip(gradients(a, before, dh, reverse), counts, strict=True)
        for plane in planes(gradient, n)
    ]
    for got, want in zip(by, wanted, strict=True):
        assert error(got, np.array(want)) <= 2e-6


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_nothing_is_launched_for_nothing(shape):
    (h,) = gpu.linear_recurrence(None, (mx.zeros(shape),), (mx.zeros(shape),), (mx.zeros(0),))
    assert h.shape == shape
    assert pl.join((h,)).dtype == mx.float32
