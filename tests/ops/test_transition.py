import mlx.core as mx
import numpy as np
from helpers.reference import error

import mlx_gateloop as gl


def values(*planes):
    real, *imaginary = (np.array(p, dtype=np.float64) for p in planes)
    return real + 1j * imaginary[0] if imaginary else real


def test_sigmoid_is_the_papers_transition():
    gamma, theta = mx.linspace(-30, 30, 241), mx.linspace(-10, 10, 241)
    g, t = (np.array(x, dtype=np.float64) for x in (gamma, theta))
    want = np.exp(1j * t) / (1 + np.exp(-g))
    assert error(values(*gl.Transition.sigmoid(gamma, theta).planes()), want) < 2e-7
    assert error(values(*gl.Transition.sigmoid(gamma).planes()), np.abs(want)) < 1e-7


def test_sigmoid_is_rounded_once_near_one():
    gamma = mx.linspace(2, 16, 1001)
    (magnitude,) = gl.Transition.sigmoid(gamma).planes()
    exact = 1 / (1 + np.exp(-np.array(gamma, dtype=np.float64)))
    assert np.abs(np.array(magnitude, dtype=np.float64) - exact).max() <= 2**-24


def test_sigmoid_keeps_small_magnitudes():
    gamma = mx.linspace(-80, -20, 101)
    exact = np.exp(np.array(gamma, dtype=np.float64))
    (magnitude,) = gl.Transition.sigmoid(gamma).planes()
    np.testing.assert_allclose(np.array(magnitude), exact, rtol=1e-5)


def test_polar_resets_exactly_at_minus_infinity():
    log_magnitude = mx.array([-mx.inf, -1.0, 0.0])
    phase = mx.array([1.0, 2.0, -2.0])
    got = values(*gl.Transition.polar(log_magnitude, phase).planes())
    want = np.exp(np.array([-1.0, 0.0]) + 1j * np.array([2.0, -2.0]))
    assert got[0] == 0
    assert error(got[1:], want) < 2e-7


def test_the_sigmoids_gradient_has_no_hole():
    gamma = mx.array([0.0, -0.0, 1e-8, -1e-8, 2.0, -2.0])
    gradient = mx.grad(lambda g: gl.Transition.sigmoid(g).planes()[0].sum())(gamma)
    s = 1 / (1 + np.exp(-np.array(gamma, dtype=np.float64)))
    np.testing.assert_allclose(np.array(gradient), s * (1 - s), rtol=1e-6)
