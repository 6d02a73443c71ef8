"""The base of all sources: settings, names of tensors, and recognition of a source."""

from helpers.errors import refusal
from helpers.parity import paper_state, shapes_of
from mlx_gateloop.convert.sources import SOURCES, detect
from mlx_gateloop.convert.sources.base import depth


def test_wrong_settings_are_named(state):
    message = refusal(SOURCES["lucidrains"].infer, shapes_of(state), {"ablate_complex": "yes"})
    assert message == "lucidrains: setting ablate_complex must be true or false, got 'yes'"
    message = refusal(SOURCES["paper"].infer, shapes_of(paper_state(17)), {"activation": "relu"})
    assert message == "paper: setting activation must be gelu or gelu_tanh, got 'relu'"


def test_missing_matrices_are_named(state):
    shapes = shapes_of(state)
    name = "layers.0.0.fn.to_a.0.weight"
    without = {n: s for n, s in shapes.items() if n != name}
    infer = SOURCES["lucidrains"].infer
    assert refusal(infer, without, {}) == f"lucidrains: missing {name}"
    message = refusal(infer, shapes | {name: (3,)}, {})
    assert message == f"lucidrains: {name} must be a matrix, got shape (3,)"


def test_depth_counts_the_layers_and_believes_no_name():
    names = [f"a.{i}.w" for i in range(11)] + ["a.x.w", "a.11.v", "b.20.w", "a.1.b.w"]
    assert depth(dict.fromkeys(names, ()), "a.{}.w") == 11
    assert depth({}, "a.{}.w") == 0
    assert depth(dict.fromkeys(["a.0.w", f"a.{'9' * 5000}.w"], ()), "a.{}.w") == 1
    claimed = dict.fromkeys(["a.0.w", "a.99999999.w"], ())
    assert refusal(depth, claimed, "a.{}.w").startswith("missing a.1.w")


def test_sources_are_known_by_their_kind():
    assert detect({}, "paper") is SOURCES["paper"]
    message = refusal(detect, {"wte.weight": (3, 4)})
    assert message.startswith("no known source (lucidrains, ")
    assert "wte.weight" in message
