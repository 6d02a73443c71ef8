"""The file that saved directories carry against `gl.Model`: the same weights, the same results."""

import dataclasses

import mlx.core as mx
import mlx.nn as nn
import pytest
from helpers.family import close
from helpers.models import check_padding, padded, tiny_model, tokens
from mlx.utils import tree_flatten

from mlx_gateloop.io.model_file import PACKAGE_ONLY, model_file
from mlx_gateloop.model import standalone
from mlx_gateloop.model.lm import ModelArgs, is_state_transition

OPTIONS = {
    "paper": {}, "fixed": {"transition": "fixed", "tie_word_embeddings": True, "input_scale": True},
    "polar_abs": {"gate": "polar_abs", "norm": "rms", "norm_position": "post"},
    "real": {"gate": "real", "bias": False, "head_bias": True}, "convolution": {"conv_size": 4},
    "heads": {"num_heads": 2, "output_gate": True, "final_norm": False, "input_scale": True},
    "one real head": {
        "num_heads": 1, "gate": "real", "output_projection": True, "input_scale": True,
    },
    "fixed real": {"gate": "real", "transition": "fixed", "norm": "none", "head_bias": False},
    "fixed polar_abs": {"gate": "polar_abs", "transition": "fixed", "num_outputs": 5},
}  # fmt: skip


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def models(request):
    """Our model with random weights everywhere, and the file's with the same."""
    model = tiny_model(hidden_size=32, intermediate_size=32, **request.param)
    weights = {  # norms start at 1 and 0, which would hide a mistake
        name: w + 0.1 * mx.random.normal(w.shape) for name, w in tree_flatten(model.parameters())
    }
    if model.args.norm == "none":  # y is cubic in x, and so is the error
        weights = {name: 0.5 * w for name, w in weights.items()}
    model.load_weights(list(weights.items()))
    copy = standalone.Model(standalone.ModelArgs.from_dict(dataclasses.asdict(model.args)))
    copy.load_weights(list(weights.items()))  # strict: every name and shape fits
    copy.eval()
    return model, copy


def test_logits_and_cache_of_parts_of_a_text(models):
    model, copy = models
    prompt = tokens(standalone.CHUNK + 9, batch=2)
    ours, theirs = model.make_cache(), copy.make_cache()
    for part in mx.split(prompt, [5, 6, standalone.CHUNK + 8], axis=1):
        close(copy(part, theirs), model(part, ours))
        for expected, cache in zip(ours, theirs, strict=True):
            for found, entry in zip(cache.cache, expected.cache, strict=True):
                close(found, entry)
                assert found.dtype == mx.float32
    close(copy(prompt), model(prompt))
    assert model_file(copy.args) == model_file(model.args)  # either can be saved again


@pytest.mark.parametrize("left", [True, False])
def test_padded_batches(models, left):
    copy, lengths = models[1], (7, 4, 1)
    check_padding(copy, padded(copy, lengths, left), lengths, 4, left, close)


def test_gradients(models):
    prompt, targets = tokens(30, batch=2), tokens(30, batch=2, seed=1) % 5

    def gradients(model):
        def loss():
            return nn.losses.cross_entropy(model(prompt), targets, reduction="mean")

        return tree_flatten(nn.value_and_grad(model, loss)()[1], destination={})

    expected, found = map(gradients, models)
    assert expected.keys() == found.keys()
    for name, gradient in found.items():
        close(gradient, expected[name])


def test_quantizing_casting_and_sanitizing(models):
    model, copy = models
    names = tree_flatten(copy.parameters(), destination={})
    transitions = set(filter(is_state_transition, names))
    assert {n for n in names if not copy.cast_predicate(n)} == transitions
    half = {n: mx.zeros(1, mx.float16) for n in (*names, "lm_head.weight")}
    expected = {n: mx.float32 if is_state_transition(n) else mx.float16 for n in names}
    for m in models:
        assert {n: w.dtype for n, w in m.sanitize(half).items()} == expected
        nn.quantize(m, 32, 8, class_predicate=lambda _, m: hasattr(m, "to_quantized"))
    close(copy(tokens(9)), model(tokens(9)))


def test_polar_abs_has_a_gradient_where_z_is_zero():
    mixing = standalone.TimeMixing(standalone.ModelArgs(hidden_size=4, gate="polar_abs"))
    for name in ("gamma_proj", "theta_proj"):
        mixing[name].update({"weight": mx.zeros((4, 4)), "bias": mx.zeros(4)})
    _, gradients = nn.value_and_grad(mixing, lambda x: mixing(x).sum())(mx.ones((1, 3, 4)))
    for _, gradient in tree_flatten(gradients):
        assert mx.all(mx.isfinite(gradient))


def test_every_option_is_held_or_named_as_missing():
    held = {field.name for field in dataclasses.fields(standalone.ModelArgs)}
    every = {field.name for field in dataclasses.fields(ModelArgs)}
    assert held | {"dropout", "longest_half_life"} | set(PACKAGE_ONLY) == every
    assert not held & set(PACKAGE_ONLY)
    assert standalone.ModelArgs() == standalone.ModelArgs.from_dict(dataclasses.asdict(ModelArgs()))
