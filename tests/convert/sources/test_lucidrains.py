"""Parity with the real gateloop-transformer over the grid of its constructor."""

import itertools

import mlx.core as mx
import pytest
from helpers.checkpoints import state_of, torch, torch_model
from helpers.errors import refusal
from helpers.parity import TOLERANCE, assert_same, converted, difference, random_tokens, shapes_of
from mlx_gateloop.convert.sources import SOURCES, detect

from mlx_gateloop.model.lm import ModelArgs

VOCAB = 19
LUCIDRAINS = SOURCES["lucidrains"]
# Heads and dim_gate_looped_attn, for a model of width 8.
SIZES = [(None, None), (2, None), (1, None), (None, 12), (3, 12), (4, 4)]
FLAGS = ("attn_add_swish_gating", "sub_ln", "post_ln_norm")
ABLATIONS = ({}, {"ablate_complex": True}, {"ablate_state_transition": True})


def transformer(seed=0, **options):
    return torch_model(seed, 0.3, **{"dim": 8, "num_tokens": VOCAB, "ff_mult": 4} | options)


EVERY = itertools.product(enumerate(SIZES), itertools.product([False, True], repeat=3))


@pytest.mark.parametrize(
    ("number", "size", "flags"), [(n, s, f) for (n, s), f in EVERY if (n + sum(f)) % 2]
)
def test_every_variant_computes_the_same(number, size, flags):
    """Each size with half of the flags, so that any two meet; the ablations take turns."""
    ablation = ABLATIONS[(number + sum(flags)) % 3]
    heads, width = size
    model = transformer(
        number, gate_loop_heads=heads, dim_gate_looped_attn=width, ff_mult=1 + number % 3,
        frac_gradient_state_transition=0.5, **dict(zip(FLAGS, flags, strict=True)), **ablation,
    )  # fmt: skip
    ours, reference = converted(state_of(model), "lucidrains", ablation)
    assert_same(ours, reference, 7, VOCAB)
    prompt = random_tokens(VOCAB, 7)  # the model as it was made, not as we rebuilt it
    with torch.no_grad():
        logits = model(torch.from_numpy(prompt)).numpy()
    assert difference(ours(mx.array(prompt)), logits) <= TOLERANCE


def test_what_is_inferred_and_what_is_assumed():
    shapes = shapes_of(state_of(transformer(gate_loop_heads=2, depth=3)))
    inference = LUCIDRAINS.infer(shapes, {"ablate_complex": True})
    assert inference.args.ablation == "phase"
    assert "depth 3" in inference.inferred[0]
    assert inference.assumed == ["ablate_state_transition=False"]
    inference = LUCIDRAINS.infer(shapes, {})
    assert inference.args.ablation == "none"
    assert "complex states" in inference.assumed[-1]


def test_what_the_package_cannot_have_is_named():
    shapes = shapes_of(state_of(transformer(use_gate_looped_attn=False, dim_head=8, heads=2)))
    assert detect(shapes) is LUCIDRAINS
    assert "use_gate_looped_attn=False is not supported" in refusal(LUCIDRAINS.infer, shapes, {})
    message = refusal(LUCIDRAINS.reference, ModelArgs(hidden_size=8, intermediate_size=20), None)
    assert "feed-forward of a multiple of dim 8, got 20" in message
