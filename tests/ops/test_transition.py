import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error

import mlx_gateloop as gl


def values(*planes: mx.array) -> np.ndarray:
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


def test_of_takes_complex_and_real_arrays():
    complex_array = mx.array([1 + 2j, 3 - 4j])
    assert values(*gl.Transition.of(complex_array).planes()).tolist() == [1 + 2j, 3 - 4j]
    assert values(*gl.Transition.of(mx.array([0.5, 2.0])).planes()).tolist() == [0.5, 2.0]
    assert gl.Transition.of(complex_array).is_complex
    assert not gl.Transition.of(mx.array([0.5])).is_complex


def test_half_precision_inputs_give_float32_planes():
    gamma = mx.array([1.0, 2.0], mx.bfloat16)
    assert all(p.dtype == mx.float32 for p in gl.Transition.sigmoid(gamma, gamma).planes())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: gl.Transition.of(mx.array([1, 2])), "a: expected a floating-point"),
        (lambda: gl.Transition.of([0.5]), "got list"),
        (lambda: gl.Transition.sigmoid(mx.array([1j])), "gamma: expected a real"),
        (lambda: gl.Transition.sigmoid(mx.zeros(2), mx.zeros(3)), r"theta: .*\(2,\), got \(3,\)"),
        (lambda: gl.Transition.polar(mx.zeros(2), mx.array([1, 2])), "phase: expected a real"),
        (lambda: gl.Transition.polar(None), "log_magnitude: expected a real"),
    ],
)
def test_bad_parts(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("mode", ["recurrent", "scan", "attention"])
def test_gradients_by_gamma_and_theta_are_finite_differences(mode):
    q, k, v, gamma, theta = (mx.random.normal((1, 9, 2), key=mx.random.key(i)) for i in range(5))

    def loss(gamma, theta):
        return gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta), mode=mode)[0].sum()

    for i, x in enumerate((gamma, theta)):
        gradient = mx.grad(loss, argnums=i)(gamma, theta)
        direction = mx.random.normal(x.shape, key=mx.random.key(9))
        pair = [gamma, theta]
        sides = []
        for sign in (1, -1):
            pair[i] = x + sign * 1e-2 * direction
            sides.append(loss(*pair).item())
        assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(
            (gradient * direction).sum().item(), rel=2e-3
        )


def test_the_sigmoids_gradient_has_no_hole():
    gamma = mx.array([0.0, -0.0, 1e-8, -1e-8, 2.0, -2.0])
    gradient = mx.grad(lambda g: gl.Transition.sigmoid(g).planes()[0].sum())(gamma)
    s = 1 / (1 + np.exp(-np.array(gamma, dtype=np.float64)))
    np.testing.assert_allclose(np.array(gradient), s * (1 - s), rtol=1e-6)
