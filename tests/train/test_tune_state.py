"""State tuning: gradients, frozen weights and losses."""

from itertools import count
from pathlib import Path
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.family import family_model
from helpers.models import VARIANTS, ruined, tiny_model
from mlx.utils import tree_flatten, tree_map

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.train.tune_state import _Tuner


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "style.txt"
    path.write_text("so calm, so slow.\n" * 60)
    return str(path)


def tiny(name="paper"):
    if name == "gla_grouped":
        return family_model(name, vocab_size=262, norm_eps=1.0)
    return tiny_model(vocab_size=262, **VARIANTS[name])


@pytest.mark.parametrize("name", ["paper", "heads", "real", "gla_grouped"])
def test_gradients_by_the_initial_states_are_finite_differences(text, name):
    """Through the whole model, along a random direction of all layers."""
    tuner = _Tuner(tiny(name), byte_tokenizer(), text, 12, 2, False, 0)
    inputs, targets = map(mx.array, tuner.training.batch(0, 0))
    keys = iter(mx.random.split(mx.random.key(1), 20))
    point, way = (
        [[mx.random.normal(x.shape, key=next(keys)) for x in layer] for layer in tuner.zero]
        for _ in "12"
    )

    def along(t):
        return tuner.loss(tree_map(lambda x, d: x + t * d, point, way), inputs, targets).item()

    gradient = mx.grad(lambda states: tuner.loss(states, inputs, targets))(point)
    products = tree_map(lambda x, d: (x * d).sum(), gradient, way)
    slopes = [slope.item() for _, slope in tree_flatten(products)]
    assert all(slopes), "every layer is learned"
    assert sum(slopes) == pytest.approx((along(0.01) - along(-0.01)) / 0.02, rel=0.02, abs=0.02)


def test_a_state_is_learned_and_no_weight_changes(text):
    model, tokenizer = tiny(), byte_tokenizer()
    before = {name: np.array(x) for name, x in tree_flatten(model.parameters())}
    tuned = gl.tune_state(model, tokenizer, text, length=20, batch_size=4, steps=60)
    for name, x in tree_flatten(model.parameters()):
        assert np.array_equal(np.array(x), before[name]), name
    assert tuned.loss < tuned.loss_before - 0.05
    prompt = mx.array([[7, 8, 9]])
    assert mx.abs(model(prompt, tuned.state.cache) - model(prompt)).max() > 1e-3


def test_a_state_is_never_worse_than_none(text, monkeypatch):
    monkeypatch.setattr(_Tuner, "validate", Mock(side_effect=count(1.0)))
    options, report = {"length": 20, "batch_size": 4, "steps": 2}, Mock()
    tuned = gl.tune_state(tiny(), byte_tokenizer(), text, report=report, **options)
    assert "; give more text" in report.call_args.args[0]
    assert (tuned.loss_before, tuned.loss, tuned.scale) == (1, 1, 0)
    assert not any(x.any() for cache in tuned.state.cache for x in cache.cache)


def test_pieces_count_each_target_once(text):
    """Pieces of unequal length, from the zero state, beside one pass a piece."""
    model = tiny()
    tuner, nats, count = _Tuner(model, byte_tokenizer(), text, 50, 3, False, 0), 0.0, 0
    for batch in tuner.validation.in_order():
        for inputs, targets in zip(*batch, strict=True):
            asked = targets >= 0
            logits = np.array(model(mx.array(inputs[None, asked])), np.float64)[0]
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            nats -= logs[np.arange(asked.sum()), targets[asked]].sum()
            count += asked.sum()
    for size, seed in ((3, 0), (2, 1)):  # which decide nothing
        tuner = _Tuner(model, byte_tokenizer(), text, 50, size, False, seed)
        assert tuner.validate(tuner.zero) == pytest.approx(nats / count, abs=1e-6)
    long = _Tuner(model, byte_tokenizer(), text, 10**6, 3, False, 0)
    assert long.training.length <= len(Path(text).read_bytes()), "no row is longer than the text"


def test_a_model_with_attention_or_without_numbers_is_refused(text):
    with pytest.raises(InputError, match=r"has attention, which has no state; tune LoRA$"):
        gl.tune_state(tiny_model(vocab_size=262, mixer="softmax"), byte_tokenizer(), text)
    assert "is not finite" in refusal(gl.tune_state, ruined(tiny()), byte_tokenizer(), text)
    for name in ("length", "batch_size", "steps", "patience"):
        assert f"{name}: exp" in refusal(gl.tune_state, tiny(), byte_tokenizer(), text, **{name: 0})
