"""Parity with the paper's model, as a PyTorch module and as its equations in NumPy."""

import mlx.core as mx
import pytest
from helpers.checkpoints import state_of, torch
from helpers.paper_model import paper_model
from helpers.parity import TOLERANCE, assert_same, converted, difference, shapes_of, tokens
from mlx_gateloop.convert.sources import SOURCES

VOCAB = 17
VARIANTS = {
    "paper": {},
    "heads": {"heads": 2},
    "real": {"real": True},
    "fixed": {"fixed": True},
    "fixed and real with heads": {"fixed": True, "real": True, "heads": 4},
    "gated and tied": {"gated": True, "tied": True},
    "without bias": {"bias": False, "gated": True},
    "another width": {"width": 12, "heads": 3, "outputs": 9, "final_norm": False},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_computes_the_same(options):
    model = paper_model(VOCAB, **options)
    settings = {"num_heads": options["heads"]} if "heads" in options else {}
    ours, reference = converted(state_of(model), "paper", settings)
    assert_same(ours, reference, 9, VOCAB)
    for length in (9, 512):
        prompt = tokens(VOCAB, length)
        with torch.no_grad():
            expected = model(torch.from_numpy(prompt))
        assert difference(ours(mx.array(prompt)), expected) <= TOLERANCE


def test_settings_reach_the_model():
    state = state_of(paper_model(VOCAB))
    settings = {"activation": "gelu_tanh", "norm_eps": 0.1, "num_heads": 4}
    ours, reference = converted(state, "paper", settings)
    args = ours.args
    assert (args.activation, args.layer_norm_eps, args.heads) == ("gelu_tanh", 0.1, 4)
    assert_same(ours, reference, 9, VOCAB)
    infer, shapes = SOURCES["paper"].infer, shapes_of(state)
    assert infer(shapes, settings).assumed == []
    assumed = ["num_heads=8: max-headed", "norm_eps=1e-5", "activation=gelu"]
    assert infer(shapes, {}).assumed == assumed
