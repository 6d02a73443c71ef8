"""Edits of the state against brute force: a plain loop over the tokens of each layer."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.cases import first
from helpers.edits import looped
from helpers.errors import refusal
from helpers.models import VARIANTS, close, tiny_model, tokens
from helpers.recurrent import parts, recurrent_model
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.model.cache import CannotTrim
from mlx_gateloop.watch import Edit
from mlx_gateloop.watch.recurrences import OPERATOR

LENGTH, LAYERS = 9, 2


def logits_of(model, text, edits):
    """Logits of a model whose edited states are computed one token after another."""
    for layer, block in enumerate(model.layers):
        run = looped("gate_loop", [each for each in edits if each.layer == layer])
        block.time_mixing.operator = lambda *given, run=run, **_: run(
            None, OPERATOR, dict(zip("qkva", given, strict=False))
        )
    logits = model(text)
    for block in model.layers:
        block.time_mixing.operator = None
    return logits


def some(count):
    return st.none() | st.lists(st.integers(0, count - 1), min_size=1, max_size=4)


@pytest.mark.parametrize("name", first(8, VARIANTS))
@settings(max_examples=4)
@given(st.data())
def test_edits_are_exact_whole_and_token_by_token(name, data):
    model, text = tiny_model(**VARIANTS[name]), tokens(LENGTH)
    width = model.args.width
    where = {"layer": st.integers(0, LAYERS - 1), "channels": some(width), "tokens": some(LENGTH)}
    values = {"keep": [None, 0.0, 0.5, 1.0], "write": [1.0, 0.0, 3.0], "value": [None, 0.0, 2.0]}
    what = {name: st.sampled_from(each) for name, each in values.items()}
    edits = data.draw(st.lists(st.builds(Edit, **where, **what), min_size=1, max_size=3))
    before = model(text)
    expected = logits_of(model, text, edits)
    with gl.watch.edit(model, *edits):
        close(model(text), expected)
    cache, parts = model.make_cache(), []
    with gl.watch.edit(model, *edits):
        for start, stop in ((0, 0), (0, 4), (4, 4), (4, 5), (5, LENGTH)):
            parts.append(model(text[:, start:stop], cache))
    close(mx.concatenate(parts, 1), expected)
    assert mx.array_equal(model(text), before)  # nothing is left behind


@pytest.mark.parametrize("name", ["paper", "heads", "real heads"])
def test_a_state_of_another_run_takes_its_place(name):
    model, text, other = tiny_model(**VARIANTS[name]), tokens(LENGTH), tokens(5, seed=1)
    cache = model.make_cache()
    model(other, cache)
    states = [entry[0] for entry in cache]
    expected = model(text[:, 5:], cache)
    flat = [h.reshape(h.shape[1], model.args.width, *h.shape[4:]) for h in states]
    back = [*range(model.args.width)][::-1]
    edits = [Edit(0, tokens=[4], value=flat[0]), Edit(1, back, [4], value=flat[1][:, back])]
    with gl.watch.edit(model, *edits):
        close(model(text)[:, 5:], expected)


def test_layers_and_channels_can_be_all_a_slice_or_an_array():
    model, text = tiny_model(), tokens(LENGTH)

    def edited(*edits):
        with gl.watch.edit(model, *edits):
            return model(text)

    at, both = [2, 3, 4], range(LAYERS)
    expected = edited(*(Edit(layer, at, [1, 5], keep=0.0, value=2.0) for layer in both))
    mask = np.isin(np.arange(9), [1, 5])
    arrays = ((np.array(at), mask), (np.isin(np.arange(8), at), mask))
    for channels, where in ((slice(2, 5), [1, 5]), *arrays, (tuple(at), [*mask])):
        given = Edit(channels=channels, tokens=where, keep=0.0, value=2.0)
        assert mx.array_equal(edited(given), expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_channels_is_an_edit_for_each(name):
    model, text = tiny_model(**VARIANTS[name]), tokens(LENGTH)
    losses = gl.watch.channels(model, text[0], 1, since=2)
    width = model.args.width
    assert losses.shape == (width, LENGTH - 3)
    ids = np.array(text[0])[1:]

    def surprises():
        logits = np.array(model(text)[0, :-1], np.float64)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return -logs[np.arange(LENGTH - 1), ids]

    whole = surprises()
    for channel in range(width):
        with gl.watch.edit(model, Edit(1, channels=[channel], write=0.0)):
            expected = surprises() - whole
        np.testing.assert_allclose(losses[channel], expected[2:], atol=1e-5)


@pytest.mark.parametrize(("name", "edits", "message"), [
    ("ours", [Edit(2)], "edits[0].layer: expected 0 to 1, got 2"),
    ("ours", [Edit(0), Edit(0, [8])], "edits[1].channels: expected 0 to 7, got 8"),
    ("ours", [Edit(0, [1.5])], "edits[0].channels: expected indices, got [1.5]"),
    ("ours", [Edit(0, tokens=[-1])], "edits[0].tokens: expected 0 or more, got -1"),
    ("ours", [Edit(0, tokens=[4])], "edits[0].tokens: expected 0 to 3, got 4"),
    ("mamba", [Edit(0)], "edits: layer 0 computes its decays inside ssm_step"),
    ("llama", [Edit(0)], "model: it has no recurrent layer"),
    ("kimi_k3", [Edit(0, keep=0)], "keep: the gate of this layer has a lower bound"),
    ("kimi_linear", [Edit(0, [1], write=0)], "write: this layer writes whole heads"),
    ("mamba2", [Edit(0, [4])], "edits[0].channels: expected 0 to 3, got 4"),
    ("mamba2", [Edit(0, keep=1.5)], "edits[0].keep: expected 0 to 1 for this model, got 1.5"),
])  # fmt: skip
def test_what_cannot_be_edited_is_one_line(name, edits, message):
    model = tiny_model() if name == "ours" else recurrent_model(name)
    before = parts(model)

    def run():
        with gl.watch.edit(model, *edits):
            model(tokens(4), model.make_cache())

    assert refusal(run).startswith(message)
    assert parts(model) == before or model.layers[0].time_mixing.operator is None


def test_a_step_of_zero_can_be_edited():
    model = recurrent_model("mamba2")
    model.layers[0].mixer.dt_bias -= 300
    with gl.watch.edit(model, Edit(0, keep=0.5)):
        assert mx.isfinite(model(tokens(4), model.make_cache())).all()


def test_a_gate_that_rounds_to_zero_can_be_edited():
    model, text = tiny_model(transition="fixed"), tokens(LENGTH)
    model.layers[0].time_mixing.gamma -= 200
    edits = [Edit(0, tokens=[4], keep=0.5)]
    with gl.watch.edit(model, *edits):
        close(model(text), logits_of(model, text, edits))


def test_a_cache_cannot_go_back_over_an_edit():
    model = tiny_model()
    cache = model.make_cache()
    with gl.watch.edit(model, Edit(0, keep=0)):
        model(tokens(4), cache)
    with pytest.raises(CannotTrim):
        cache[0].trim(1)


def test_what_would_be_lost_or_undefined_is_refused():
    model = tiny_model(vocab_size=40, num_outputs=5)
    with gl.watch.edit(model, Edit(keep=0)):
        assert "already being edited" in refusal(gl.watch.edit(model, Edit(write=0)).__enter__)
        assert refusal(model, tokens(4, batch=2)) == "edit: expected one text, got a batch of 2"
    assert "predicts ids below 5, got 7" in refusal(gl.watch.channels, model, [1, 7, 3], 0)
    got = refusal(gl.watch.channels, recurrent_model("mamba2"), [1, 2], 0)
    assert got.startswith("model: expected a GateLoop")
    assert refusal(gl.watch.channels, tiny_model(), [1, 2], 2) == "layer: expected 0 to 1, got 2"
    assert refusal(gl.watch.channels, tiny_model(), [1], 0).startswith("tokens: expected at least")
