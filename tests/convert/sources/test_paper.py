"""Parity with the paper's model, as a PyTorch module and as its equations in NumPy."""

import mlx.core as mx
import pytest
from helpers.checkpoints import problem, state_of, torch
from helpers.parity import TOLERANCE, assert_same, converted, difference, shapes_of, tokens
from mlx_gateloop.convert.sources import SOURCES

paper = SOURCES["paper"]
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


def paper_model(**options):
    from helpers.paper_model import PaperModel

    torch.manual_seed(0)
    model = PaperModel(VOCAB, 8, 20, 2, **options).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_computes_the_same(options):
    model = paper_model(**options)
    settings = {"num_heads": options["heads"]} if "heads" in options else {}
    ours, reference = converted(state_of(model), "paper", settings)
    assert_same(ours, reference, 9, VOCAB)
    for length in (9, 512):
        prompt = tokens(VOCAB, length)
        with torch.no_grad():
            expected = model(torch.from_numpy(prompt))
        assert difference(ours(mx.array(prompt)), expected) <= TOLERANCE


def test_settings_reach_the_model():
    state = state_of(paper_model())
    settings = {"activation": "gelu_tanh", "norm_eps": 0.1, "num_heads": 4}
    ours, reference = converted(state, "paper", settings)
    assert (ours.args.activation, ours.args.layer_norm_eps, ours.args.heads) == (
        "gelu_tanh",
        0.1,
        4,
    )
    assert_same(ours, reference, 9, VOCAB)
    assert paper.infer(shapes_of(state), settings).assumed == []
    assumed = ["num_heads=8: max-headed", "norm_eps=1e-5", "activation=gelu"]
    assert paper.infer(shapes_of(state), {}).assumed == assumed


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"activation": "relu"}, "setting activation must be gelu or gelu_tanh, got 'relu'"),
        ({"heads": 2}, "unknown setting heads; expected num_heads, norm_eps, activation"),
    ],
)
def test_wrong_settings_are_named(settings, expected):
    shapes = shapes_of(state_of(paper_model()))
    assert problem(lambda: paper.infer(shapes, settings)) == f"paper: {expected}"
