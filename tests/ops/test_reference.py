"""The reference's own gradient, against finite differences of its forward loop."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.reference import forward, gradients, random_case


@pytest.mark.parametrize("heads", [(3, 1, 1), (2, 2, 3)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("masked", [0.0, 0.4])
@pytest.mark.parametrize("is_complex", [True, False])
def test_adjoint_is_the_finite_difference(is_complex, masked, reverse, heads):
    case = random_case(1, 6, heads=heads, is_complex=is_complex, masked=masked, reverse=reverse)

    def loss(case) -> float:
        y, h, _ = forward(case)
        return (y * case.dy).sum() + (h.real * case.dh.real + h.imag * case.dh.imag).sum()

    rng = np.random.default_rng(2)
    for name, gradient in gradients(case).items():
        x = getattr(case, name)
        for unit in (1, 1j) if np.iscomplexobj(x) else (1,):
            direction = rng.normal(size=x.shape)
            up, down = (
                loss(replace(case, **{name: x + sign * 1e-6 * unit * direction}))
                for sign in (1, -1)
            )
            along = (np.real(gradient * np.conj(unit)) * direction).sum()
            assert (up - down) / 2e-6 == pytest.approx(along, rel=1e-6, abs=1e-7), name
