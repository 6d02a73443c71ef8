import mlx.core as mx
import numpy as np
from helpers.reference import error

import mlx_gateloop as gl


def test_sigmoid_is_the_papers_transition():
    gamma, theta = mx.linspace(-30, 30, 241), mx.linspace(-10, 10, 241)
    g, t = (np.array(x, dtype=np.float64) for x in (gamma, theta))
    real, imaginary = map(np.array, gl.Transition.sigmoid(gamma, theta).planes())
    assert error(real + 1j * imaginary, np.exp(1j * t) / (1 + np.exp(-g))) < 2e-7


def test_sigmoid_keeps_digits_near_zero_and_near_one():
    gamma = mx.concatenate([mx.linspace(-80, -20, 101), mx.linspace(2, 16, 1001)])
    exact = 1 / (1 + np.exp(-np.array(gamma, dtype=np.float64)))
    (magnitude,) = gl.Transition.sigmoid(gamma).planes()
    np.testing.assert_allclose(np.array(magnitude), exact, rtol=1e-5)
    assert np.abs(np.array(magnitude, dtype=np.float64) - exact).max() <= 2**-24


def test_the_sigmoids_gradient_has_no_hole():
    gamma = mx.array([0.0, -0.0, 1e-8, -1e-8, 2.0, -2.0])
    gradient = mx.grad(lambda g: gl.Transition.sigmoid(g).planes()[0].sum())(gamma)
    s = 1 / (1 + np.exp(-np.array(gamma, dtype=np.float64)))
    np.testing.assert_allclose(np.array(gradient), s * (1 - s), rtol=1e-6)


def test_parts_that_were_given_in_16_bits_are_float32():
    half = mx.array([0.5], mx.float16)
    assert {x.dtype for x in gl.Transition("cartesian", half, half).planes()} == {mx.float32}
