"""Parity with the author's Flax module."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.cases import first
from helpers.errors import refusal
from helpers.flax_model import VOCAB, flax_model, flax_state
from helpers.parity import TOLERANCE, assert_same, converted, difference, random_tokens, shapes_of
from mlx.utils import tree_unflatten
from mlx_gateloop.convert.sources import SOURCES

jax = pytest.importorskip("jax", reason="JAX is not installed")
linen = pytest.importorskip("flax.linen", reason="Flax is not installed")

source = SOURCES["flax"]
ACTIVATIONS = {"tanh": linen.tanh, "sigmoid": linen.sigmoid, "identity": lambda x: x}


@pytest.mark.parametrize(("of_input", "of_hidden", "is_tied"), first(2, [
    ("tanh", "sigmoid", True), ("sigmoid", "tanh", False),
    ("identity", "identity", True), ("tanh", "tanh", False),
]))  # fmt: skip
def test_every_setting_computes_the_same(of_input, of_hidden, is_tied):
    settings = {"input_activation": of_input, "hidden_activation": of_hidden}
    functions = {name: ACTIVATIONS[word] for name, word in settings.items()}
    state = flax_state(flax_model(use_tied_gates=is_tied, **functions))
    ours, reference = converted(state, "flax", settings)
    assert ours.args.input_gate == ("tied" if is_tied else "sigmoid")
    assert_same(ours, reference, 9, VOCAB)


@pytest.mark.slow
def test_long_sequences_and_the_state_they_leave():
    model = flax_model(use_tied_gates=True)
    state = flax_state(model)
    ours, _ = converted(state, "flax")
    cache, prompt = ours.make_cache(), random_tokens(VOCAB, 512)
    parameters = {"params": tree_unflatten(list(state.items()))}
    carry, logits = jax.jit(lambda x: model.apply(parameters, x, training=False))(prompt)
    assert difference(ours(mx.array(prompt), cache), logits) <= TOLERANCE
    states = [np.array(layer[0])[:, 0] for layer in cache]  # the real plane
    assert difference(np.stack(states, axis=1), carry) <= TOLERANCE


def test_sizes_and_settings_reach_the_model():
    state = flax_state(flax_model(d_h=8, n_layer=3, output_vocab_size=5, eps=1e-2))
    ours, reference = converted(state, "flax", {"eps": 1e-2})
    assert (ours.args.num_hidden_layers, ours.args.outputs, ours.args.width) == (3, 5, 8)
    assert_same(ours, reference, 9, VOCAB)
    assert len(source.infer(shapes_of(state), {}).assumed) == 6
    assert len(source.infer(shapes_of(state), {"eps": 1e-2}).assumed) == 5


@pytest.mark.parametrize(("name", "shape", "expected"), [
    ("time_mixing_layers_0.model.proj.kernel", (8, 24), "3 or 4 times d_h = 12 columns"),
    ("wpe.embedding", (512, 8), "positional_encoding_mode must be none"),
    ("input_function.kernel", (8, 8), "use_word_embedding=False"),
])  # fmt: skip
def test_other_tensors_are_refused_by_name(name, shape, expected):
    shapes = shapes_of(flax_state(flax_model())) | {name: shape}
    assert expected in refusal(source.infer, shapes, {})


def test_other_modes_are_refused_by_name():
    shapes = shapes_of(flax_state(flax_model()))
    assert "GateLoop has sigmoid" in refusal(source.infer, shapes, {"gate_activation": "tanh"})
    for mode in ({"use_true_recurrence": True}, {"use_head": False}):
        shapes = shapes_of(flax_state(flax_model(**mode)))
        ((name, value),) = mode.items()
        assert source.recognises(shapes)
        assert f"{name}={value} is not supported" in refusal(source.infer, shapes, {})
