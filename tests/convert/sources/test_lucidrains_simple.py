"""Parity of one layer with the real SimpleGateLoopLayer."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import state_of, torch
from helpers.errors import refusal
from helpers.parity import TOLERANCE, converted, difference
from mlx_gateloop.convert.sources import SOURCES

package = pytest.importorskip("gateloop_transformer", reason="the source model's library")

SIZE = 12


@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("post_ln", [False, True])
def test_the_layer_computes_the_same(prenorm, post_ln):
    torch.manual_seed(0)
    layer = package.SimpleGateLoopLayer(SIZE, prenorm=prenorm, post_ln=post_ln)
    with torch.no_grad():
        for weight in layer.parameters():
            weight += 0.2 * torch.randn_like(weight)
    ours, reference = converted(state_of(layer), "lucidrains-simple")
    for length in (1, 30, 512):
        x = np.random.default_rng(length).standard_normal((2, length, SIZE), np.float32)
        with torch.no_grad():
            expected = layer(torch.from_numpy(x))
        assert difference(ours(mx.array(x))[0], expected) <= TOLERANCE
        assert difference(ours(mx.array(x))[0], reference.logits(x)) <= TOLERANCE
    x, state, theirs = x[:, :9], None, None
    for n in range(9):
        with torch.no_grad():
            expected, theirs = layer(torch.from_numpy(x[:, [n]]), theirs, return_cache=True)
        y, state = ours(mx.array(x[:, [n]]), state)
        assert difference(y, expected) <= TOLERANCE


def test_a_layer_of_the_future_is_refused():
    shapes = {"to_qkva.0.weight": (36, 12)}
    infer = SOURCES["lucidrains-simple"].infer
    assert "reverse=True is not supported" in refusal(infer, shapes, {"reverse": True})
    assert infer(shapes, {}).assumed == ["reverse=False"]
