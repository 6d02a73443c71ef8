"""Edits of the state against brute force: a plain loop over the tokens of each layer."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import VARIANTS, close, tiny_model, tokens
from helpers.recurrent import recurrent_model
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.model.cache import CannotTrim
from mlx_gateloop.watch import Edit

LENGTH, WIDTH, LAYERS = 9, 8, 2
LOOPED = [name for name in VARIANTS if "ablation" not in VARIANTS[name]]


def looped(model, text, edits):
    """Logits of a model whose edited states are computed one token after another."""

    def chosen(each):
        mask = np.zeros(model.args.width, bool)
        mask[slice(None) if each.channels is None else list(each.channels)] = True
        return mask

    def operator(layer):
        mine = [each for each in edits if each.layer == layer]

        def run(q, k, v, a, state=None, *, mask=None, reverse=False, backend="auto"):
            # [1, L, ...] -> [L, H, K, V], complex
            has_heads = q.ndim == 4
            heads = q.shape[2:] if has_heads else (q.shape[2], 1)
            values = v.shape[3:] if has_heads else (1,)
            planes = [np.array(mx.broadcast_to(p, q.shape), np.float64) for p in a.planes()]
            decay = planes[0] + 1j * (planes[1] if len(planes) > 1 else 0)
            q, k, decay = (np.array(z).reshape(-1, *heads, 1) for z in (q, k, decay))
            v = np.array(v).reshape(-1, heads[0], 1, *values)
            h, y = np.zeros((*heads, *values), complex), []
            for token in range(len(q)):
                now, written = decay[token].copy(), k[token] * v[token]
                here = [each for each in mine if each.tokens is None or token in each.tokens]
                masks = [chosen(each).reshape(*heads) for each in here]
                for each, at in zip(here, masks, strict=True):
                    if each.keep is not None:
                        now[at] = each.keep
                    written[at] *= each.write
                h = now * h + written
                y.append((q[token] * h).real.sum(1))
                for each, at in zip(here, masks, strict=True):
                    if each.value is not None:
                        h[at] = each.value + (1j * each.value if len(planes) > 1 else 0)
            shape = (1, len(q), heads[0], *[-1] * (values != (1,) or heads[1] != 1))
            return mx.array(np.stack(y).astype(np.float32)).reshape(shape), None

        return run

    for layer, block in enumerate(model.layers):
        block.time_mixing.operator = operator(layer)
    logits = model(text)
    for block in model.layers:
        block.time_mixing.operator = None
    return logits


def some(count):
    return st.none() | st.lists(st.integers(0, count - 1), min_size=1, max_size=4)


@pytest.mark.parametrize("name", LOOPED)
@settings(max_examples=4)
@given(st.data())
def test_edits_are_exact_whole_and_token_by_token(name, data):
    model, text = tiny_model(**VARIANTS[name]), tokens(LENGTH)
    width = model.args.width
    edits = data.draw(
        st.lists(
            st.builds(
                Edit,
                layer=st.integers(0, LAYERS - 1),
                channels=some(width),
                tokens=some(LENGTH),
                keep=st.sampled_from([None, 0.0, 0.5, 1.0]),
                write=st.sampled_from([1.0, 0.0, 3.0]),
                value=st.sampled_from([None, 0.0, 2.0]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    before = model(text)
    expected = looped(model, text, edits)
    with gl.watch.edit(model, *edits):
        close(model(text), expected)
    cache, parts = model.make_cache(), []
    with gl.watch.edit(model, *edits):
        for start, stop in ((0, 4), (4, 5), (5, LENGTH)):
            parts.append(model(text[:, start:stop], cache))
    close(mx.concatenate(parts, 1), expected)
    assert mx.array_equal(model(text), before)  # nothing is left behind


@pytest.mark.parametrize("name", ["paper", "heads", "real heads"])
def test_a_state_of_another_run_takes_its_place(name):
    model, text, other = tiny_model(**VARIANTS[name]), tokens(LENGTH), tokens(5, seed=1)
    cache = model.make_cache()
    model(other, cache)
    expected = model(text[:, 5:], cache)
    cache = model.make_cache()
    model(other, cache)
    states = [entry[0] for entry in cache]
    flat = [h.reshape(h.shape[1], model.args.width, *h.shape[4:]) for h in states]
    edits = [Edit(layer, tokens=[4], value=h) for layer, h in enumerate(flat)]
    with gl.watch.edit(model, *edits):
        close(model(text)[:, 5:], expected)


@pytest.mark.parametrize("name", LOOPED)
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


def test_what_cannot_be_edited(tmp_path):
    model, text = tiny_model(), tokens(4)

    def edited(*edits, model=model, text=text):
        with gl.watch.edit(model, *edits):
            model(text)

    assert refusal(edited, Edit(2)) == "edits[0].layer: expected 0 to 1, got 2"
    assert refusal(edited, Edit(0), Edit(0, [8])) == "edits[1].channels: expected 0 to 7, got 8"
    assert refusal(edited, Edit(0, tokens=[-1])) == "edits[0].tokens: expected 0 or more, got -1"
    assert refusal(edited, Edit(0, tokens=[4])) == "edits[0].tokens: expected 0 to 3, got 4"
    assert refusal(lambda: edited(Edit(0), text=tokens(4, batch=2))).startswith(
        "edit: expected one"
    )
    other = recurrent_model("mamba2")
    assert refusal(gl.watch.channels, other, [1, 2], 0).startswith("model: expected a GateLoop")
    assert refusal(gl.watch.channels, model, [1, 2], 2) == "layer: expected 0 to 1, got 2"
    assert model.layers[0].time_mixing.operator is None
    cache = model.make_cache()
    with gl.watch.edit(model, Edit(0, keep=0)):
        model(text, cache)
    with pytest.raises(CannotTrim):
        cache[0].trim(1)
