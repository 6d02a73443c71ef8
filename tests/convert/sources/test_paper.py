"""Parity with the paper's equations in float64 NumPy."""

import mlx.core as mx
import pytest
from helpers.parity import TOLERANCE, assert_same, converted, difference, paper_state, shapes_of
from mlx_gateloop.convert.sources import SOURCES
from mlx_gateloop.convert.verify import random_tokens

from mlx_gateloop.io.model_file import NEEDS_PACKAGE, model_file

VOCAB = 17
VARIANTS = {
    "paper": ({}, {}), "heads": ({}, {"num_heads": 2}), "real": ({"gate": "real"}, {}),
    "fixed": ({"transition": "fixed"}, {}),
    "fixed and real with heads": ({"transition": "fixed", "gate": "real"}, {"num_heads": 4}),
    "gated and tied": ({"output_gate": True, "tie_word_embeddings": True}, {}),
    "without bias": ({"bias": False, "output_gate": True}, {}),
    "another width": ({"mixing_size": 12, "num_outputs": 9, "final_norm": False}, {"num_heads": 3}),
    "other settings": ({}, {"activation": "gelu_tanh", "norm_eps": 0.1, "num_heads": 4}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "settings"), VARIANTS.values(), ids=VARIANTS)
def test_every_variant_computes_the_same(options, settings):
    ours, reference = converted(paper_state(VOCAB, **options), "paper", settings)
    assert_same(ours, reference, 9, VOCAB)
    prompt = random_tokens(VOCAB, 512)
    assert difference(ours(mx.array(prompt)), reference.logits(prompt)) <= TOLERANCE
    found = ours.args.activation, ours.args.layer_norm_eps, ours.args.heads
    width = options.get("mixing_size", 8)
    wanted = {"activation": "gelu", "norm_eps": 1e-5, "num_heads": width} | settings
    assert found == tuple(wanted.values())


def test_what_is_not_set_is_assumed():
    infer, shapes = SOURCES["paper"].infer, shapes_of(paper_state(VOCAB))
    assert infer(shapes, VARIANTS["other settings"][1]).assumed == []
    assumed = ["num_heads=8: max-headed", "norm_eps=1e-5", "activation=gelu"]
    assert infer(shapes, {}).assumed == assumed
    assert model_file(infer(shapes, {}).args) != NEEDS_PACKAGE
