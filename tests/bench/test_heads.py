"""The contenders with heads compute the same, and the bare products have the sizes of chunks."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import error

from mlx_gateloop.bench import heads

SHAPE = (1, 192, 2, 4, 6)  # three chunks: the decay of a carried state is seen


def arrays_of(results):
    return [np.asarray(x) for x in (results if isinstance(results, (list, tuple)) else [results])]


@pytest.mark.parametrize(
    "contenders",
    [
        lambda: heads.contenders(SHAPE, True),
        pytest.param(lambda: heads.contenders(SHAPE, False), marks=pytest.mark.slow),
        lambda: heads.one_gate(SHAPE),
    ],
)
def test_contenders_agree(contenders):
    (_, ours), *others = [item for item in contenders().items() if item[0] != heads.PRODUCTS]
    if not others:
        pytest.skip("there is nothing to compare with")
    for name, other in others:
        for mine, theirs in ((ours.forward, other.forward), (ours.gradient, other.gradient)):
            for got, want in zip(arrays_of(mine()), arrays_of(theirs()), strict=True):
                assert error(got, want) < 1e-5, name


def test_loops_of_steps_that_would_fill_the_memory_are_left_out(monkeypatch):
    steps = {heads.JAX_STEPS, heads.TORCH_STEPS}
    everything = heads.contenders(SHAPE, True).keys()
    monkeypatch.setattr(heads, "STEPS_BYTES", 192 * 2 * 4 * 6 * 4)  # of one plane
    assert heads.contenders(SHAPE, False).keys() == everything
    assert heads.contenders(SHAPE, True).keys() == everything - steps


@pytest.mark.parametrize("is_complex", [False, True])
def test_the_bare_products_are_those_of_every_chunk(is_complex):
    products = heads.bare_products(SHAPE, is_complex).forward()
    chunks, width = 2 * 3, 4 * (1 + is_complex)
    assert [x.shape for x in products] == [(chunks, 64, 6), (chunks, width, 6), (chunks, 64, 6)]
    assert all(x.dtype == mx.float32 for x in products)
