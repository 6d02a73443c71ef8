"""State tuning: gradients, frozen weights, and a state that another process reads."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from helpers.family import family_model
from helpers.models import save_tiny_model, tiny_model
from mlx.utils import tree_flatten

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.train.chunks import zero_states
from mlx_gateloop.train.tune_state import _Tuner

STYLE = "so calm, so slow.\n" * 60


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "style.txt"
    path.write_text(STYLE)
    return str(path)


def tiny(name):
    size = len(byte_tokenizer())
    if name == "gla_grouped":
        return family_model(name, vocab_size=size, norm_eps=1.0)
    options = {"heads": {"num_heads": 2}, "real": {"gate": "real"}}.get(name, {})
    return tiny_model(vocab_size=size, **options)


@pytest.mark.parametrize("name", ["paper", "heads", "real", "gla_grouped"])
def test_gradients_by_the_initial_states_are_finite_differences(text, name):
    """Through the whole model, along random directions of all layers."""
    model = tiny(name)
    tuner = _Tuner(model, byte_tokenizer(), text, 12, 2, False, 0)
    inputs, targets = map(mx.array, tuner.training.batch(0, 0))
    keys = iter(mx.random.split(mx.random.key(1), 20))
    draw = lambda: [[mx.random.normal(x.shape, key=next(keys)) for x in s] for s in tuner.zero]  # noqa: E731
    point, way = draw(), draw()

    def along(t):
        pairs = zip(point, way, strict=True)
        moved = [[x + t * d for x, d in zip(*pair, strict=True)] for pair in pairs]
        return tuner.loss(moved, inputs, targets)

    gradient = mx.grad(lambda states: tuner.loss(states, inputs, targets))(point)
    slope = sum((g * d).sum().item() for g, d in zip(*map(leaves, (gradient, way)), strict=True))
    assert all(mx.abs(g).max() > 0 for g in leaves(gradient)), "every layer is learned"
    step = 0.01
    difference = (along(step) - along(-step)).item() / (2 * step)
    assert slope == pytest.approx(difference, rel=0.02, abs=0.02)


def leaves(states):
    return [x for layer in states for x in layer]


def test_a_state_is_learned_and_no_weight_changes(tmp_path, text):
    path = save_tiny_model(tmp_path / "model")
    model, tokenizer = gl.load(path)
    before = {name: np.array(x) for name, x in tree_flatten(model.parameters())}
    tuned = gl.tune_state(model, tokenizer, text, length=20, batch_size=4, steps=60)
    for name, x in tree_flatten(model.parameters()):
        assert np.array_equal(np.array(x), before[name]), name
    assert tuned.loss < tuned.loss_before - 0.05
    gl.write_state(tmp_path / "calm.state", tuned.state, model, tokenizer)
    prompt = mx.array([[7, 8, 9]])
    logits = model(prompt, gl.read_state(tmp_path / "calm.state", model, tokenizer).cache)
    assert mx.abs(logits - model(prompt)).max() > 1e-3
    script = (
        "import mlx_gateloop as gl, mlx.core as mx\n"
        f"model, tokenizer = gl.load({str(path)!r})\n"
        f"state = gl.read_state({str(tmp_path / 'calm.state')!r}, model, tokenizer)\n"
        f"mx.save({str(tmp_path / 'logits.npy')!r}, model(mx.array([[7, 8, 9]]), state.cache))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert mx.array_equal(mx.load(str(tmp_path / "logits.npy")), logits)


def test_the_loss_of_a_document_alone_counts_each_target_once(text):
    """Pieces of unequal length, from the zero state, beside one pass a piece."""
    model, tokenizer = tiny("paper"), byte_tokenizer()
    tuner = _Tuner(model, tokenizer, text, 50, 3, False, 0)
    batches, nats, count = tuner.validation, 0.0, 0
    for index in range(batches.per_epoch):
        for inputs, targets in zip(*batches.batch(0, index), strict=True):
            asked = targets >= 0
            logits = np.array(model(mx.array(inputs[None, asked])), np.float64)[0]
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            nats -= logs[np.arange(asked.sum()), targets[asked]].sum()
            count += asked.sum()
    assert tuner.validate(zero_states(model, 1)) == pytest.approx(nats / count, abs=1e-6)


@pytest.mark.parametrize(("options", "message"), [({"mixer": "softmax"}, "has attention")])
def test_a_model_without_states_is_refused(text, options, message):
    with pytest.raises(InputError, match=message) as caught:
        gl.tune_state(tiny_model(vocab_size=300, **options), byte_tokenizer(), text)
    assert "\n" not in str(caught.value)
