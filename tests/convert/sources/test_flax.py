"""Parity with the author's Flax module."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import problem
from helpers.flax_model import VOCAB, flax_model, flax_state
from helpers.parity import TOLERANCE, assert_same, converted, difference, shapes_of, tokens
from mlx_gateloop.convert.sources import SOURCES
from mlx_gateloop.convert.sources.flax import nested

jax = pytest.importorskip("jax", reason="JAX is not installed")
linen = pytest.importorskip("flax.linen", reason="Flax is not installed")

source = SOURCES["flax"]
MIXING = "time_mixing_layers_0.model"
ACTIVATIONS = {"tanh": linen.tanh, "sigmoid": linen.sigmoid, "identity": lambda x: x}


def apply(model, state, prompt):
    """The state after the last token and the logits."""
    parameters = {"params": nested(state)}
    return jax.jit(lambda x: model.apply(parameters, x, training=False))(prompt)


# Every pair of settings; `make test-all` adds the others.
SHORT = [
    (("tanh", "tanh"), True),
    (("tanh", "sigmoid"), False),
    (("sigmoid", "tanh"), False),
    (("sigmoid", "sigmoid"), True),
    (("identity", "identity"), False),
    (("identity", "identity"), True),
]
VARIANTS = itertools.product(
    [*itertools.product(["tanh", "sigmoid"], repeat=2), ("identity", "identity")], [True, False]
)


@pytest.mark.parametrize(
    ("activations", "is_tied"),
    [pytest.param(*v, marks=[] if v in SHORT else pytest.mark.slow) for v in VARIANTS],
)
def test_every_variant_computes_the_same(activations, is_tied):
    model = flax_model(
        use_tied_gates=is_tied,
        input_activation=ACTIVATIONS[activations[0]],
        hidden_activation=ACTIVATIONS[activations[1]],
    )
    state = flax_state(model)
    names = ("input_activation", "hidden_activation")
    settings = dict(zip(names, activations, strict=True))
    ours, reference = converted(state, "flax", settings)
    assert ours.args.input_gate == ("tied" if is_tied else "sigmoid")
    assert_same(ours, reference, 9, VOCAB)


@pytest.mark.parametrize("is_tied", [True, False])
def test_long_sequences_and_the_state_they_leave(is_tied):
    model = flax_model(use_tied_gates=is_tied)
    state = flax_state(model)
    ours, _ = converted(state, "flax")
    cache = ours.make_cache()
    prompt = tokens(VOCAB, 512)
    carry, logits = apply(model, state, prompt)
    assert difference(ours(mx.array(prompt), cache), logits) <= TOLERANCE
    states = [np.array(layer[0])[:, 0] for layer in cache]  # the real plane
    assert difference(np.stack(states, axis=1), carry) <= TOLERANCE


def test_sizes_and_settings_reach_the_model():
    model = flax_model(d_h=8, n_layer=3, output_vocab_size=5, eps=1e-2)
    state = flax_state(model)
    ours, reference = converted(state, "flax", {"eps": 1e-2})
    assert (ours.args.num_hidden_layers, ours.args.outputs, ours.args.width) == (3, 5, 8)
    assert_same(ours, reference, 9, VOCAB)
    assert len(source.infer(shapes_of(state), {}).assumed) == len(source.settings)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"use_true_recurrence": True}, "use_true_recurrence=True is not supported"),
        ({"use_head": False}, "use_head=False is not supported"),
    ],
)
def test_other_modes_are_refused_by_name(options, expected):
    shapes = shapes_of(flax_state(flax_model(**options)))
    assert source.recognises(shapes)
    assert expected in problem(lambda: source.infer(shapes, {}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"use_true_recurrence": True}, "use_true_recurrence=True is not supported"),
        ({"positional_encoding_mode": "sinusoidal"}, "positional_encoding_mode must be none"),
        ({"gate_activation": "tanh"}, "gate_activation must be sigmoid, got 'tanh'"),
        ({"input_activation": "relu"}, "must be tanh or sigmoid or identity, got 'relu'"),
        ({"tied": True}, "flax: unknown setting tied; expected eps, "),
    ],
)
def test_impossible_settings_are_named(settings, expected):
    shapes = shapes_of(flax_state(flax_model()))
    assert expected in problem(lambda: source.infer(shapes, settings))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (f"{MIXING}.proj.kernel", (8, 24), "must have 3 or 4 times d_h = 12 columns, got 24"),
        ("wpe.embedding", (512, 8), "positional_encoding_mode must be none"),
        ("input_function.kernel", (8, 8), "use_word_embedding=False"),
    ],
)
def test_other_tensors_are_refused_by_name(name, shape, expected):
    shapes = shapes_of(flax_state(flax_model())) | {name: shape}
    assert expected in problem(lambda: source.infer(shapes, {}))
