"""Leaving tokens out of a text: the same as a mask in every layer, in every model that can."""

import re

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import GROWING, SIZES, VARIANTS, tiny_model, tokens
from helpers.recurrent import recurrent_model
from helpers.reference import error

import mlx_gateloop as gl
from mlx_gateloop.watch import ablation

RECURRENT = ("gla", "hgrn2", "mamba2", "mamba", "falcon_mamba", "rwkv7")
LENGTH = 21  # more than a block of rows
TEXT = np.array(tokens(LENGTH))[0]


def log_probabilities(logits, following):
    logs = np.array(logits - mx.logsumexp(logits, -1, keepdims=True))[0]
    return logs[np.arange(len(following)), following].astype(np.float64)


def masked(model, text, left_out):
    """Log probabilities with a mask in every layer."""
    mask = mx.array(~np.isin(np.arange(len(text)), left_out))[None]
    hidden = model.model.embed_tokens(mx.array(text)[None])
    for layer in model.layers:
        hidden = layer(hidden, mask, None)
    hidden = model.model.norm(hidden)
    tied = model.model.embed_tokens.as_linear
    logits = model.lm_head(hidden) if "lm_head" in model else tied(hidden)
    return log_probabilities(logits[:, :-1], text[1:])


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - {"convolution"}))
def test_depends_is_a_masked_run_for_each_token(name):
    model, text = tiny_model(**VARIANTS[name]), TEXT
    losses = gl.watch.depends(model, text)
    assert losses.dtype == np.float32
    assert losses.shape == (LENGTH, LENGTH - 1)
    expected = masked(model, text, []) - [masked(model, text, [m]) for m in range(LENGTH)]
    assert error(losses, expected) <= 1e-5
    assert (losses[np.tri(LENGTH, LENGTH - 1, -1, bool)] == 0).all()


@pytest.mark.parametrize("name", [*RECURRENT, "convolution", *sorted(GROWING.keys() - {"rotary"})])
def test_depends_of_other_models_is_reading_the_others(name):
    is_ours = name not in RECURRENT
    model = tiny_model(**(VARIANTS | GROWING)[name]) if is_ours else recurrent_model(name)

    def read(positions):  # log probabilities of the tokens after these positions
        logits = model(mx.array(TEXT[None, positions]))
        return log_probabilities(logits[:, :-1], TEXT[positions][1:])

    losses, whole = gl.watch.depends(model, TEXT), read(np.arange(LENGTH))
    expected = np.zeros(losses.shape)
    for m in range(LENGTH - 1):
        expected[m, m + 1 :] = whole[m + 1 :] - read(np.delete(np.arange(LENGTH), m))[m:]
        expected[m, m] = whole[m] - read(np.array([m, m + 1]))[0]
    assert error(losses, expected) <= (1e-5 if is_ours else 1e-4)  # whose losses are small


@pytest.mark.parametrize("name", ["paper", "heads", "lucidrains"])
def test_tokens_of_a_word_are_left_out_together(name):
    model, text = tiny_model(**VARIANTS[name]), TEXT
    groups = [[3, 4, 5], [0], [18, 9], [19], [8, 20], [20]]
    losses = gl.watch.depends(model, text, groups)
    expected = masked(model, text, []) - [masked(model, text, group) for group in groups]
    assert error(losses, expected) <= 1e-5
    assert (losses[-1] == 0).all()  # nothing comes after it


@pytest.mark.parametrize("name", ["paper", "heads", "convolution", "softmax", "attention"])
def test_without_is_the_state_after_the_other_tokens(name):
    model, text = tiny_model(**(VARIANTS | GROWING)[name]), TEXT
    left_out = [0, 4, 5, 17]
    cache = gl.watch.without(model, text[:-1], left_out)
    logs = np.array(model(mx.array(text[None, -1:]), cache))[0, 0]
    assert error(logs, np.array(model(mx.array(np.delete(text, left_out)[None])))[0, -1]) <= 1e-5


@pytest.mark.parametrize("name", ["falcon_h1", "recurrent_gemma", "jamba", "rotary"])
def test_no_token_is_left_out_of_attention_beside_a_recurrence_or_of_rotary_positions(name):
    model = tiny_model(**GROWING[name]) if name in GROWING else recurrent_model(name)
    for call in (gl.watch.depends, lambda *args: gl.watch.without(*args, [0])):
        found = refusal(call, model, [1, 2, 3])
        assert re.match(r"model: (layer \d is not recurrent|.* rotary positions of the oth)", found)


@pytest.mark.parametrize("since", [0, 1, 17, LENGTH - 2])
def test_columns_that_are_not_asked_for_change_nothing(since):
    model, text = tiny_model(), TEXT
    for groups in (None, [[3, 4, 18], [19], [0], [20]]):
        whole = gl.watch.depends(model, text, groups)
        part = gl.watch.depends(model, text, groups, since=since)
        assert part.shape == (len(whole), LENGTH - 1 - since)
        assert np.abs(part - whole[:, since:]).max() <= 1e-5


@pytest.mark.parametrize("since", [0, LENGTH - 2])
@pytest.mark.parametrize(("limit", "size"), [("TOKENS", 1), ("LOGITS", SIZES["vocab_size"])])
def test_others_take_their_turns_after_each_small_pass(monkeypatch, limit, size, since):
    model, text = tiny_model(), TEXT
    whole = gl.watch.depends(model, text, since=since)
    monkeypatch.setattr(ablation, limit, ablation.ROWS * size)
    passes, call = [], type(model).__call__

    def counted(self, tokens, cache):
        if not np.array_equal(tokens, [[0]]):  # it asks for the number of outputs
            passes.append(tokens.size)
        return call(self, tokens, cache)

    monkeypatch.setattr(type(model), "__call__", counted)
    steps = [(len(passes), found) for found in ablation.depending(model, text, since=since)]
    assert max(np.diff([0, *(count for count, _ in steps)])) == 1
    assert max(passes) <= ablation.ROWS
    assert np.abs(steps[-1][1] - whole).max() <= 1e-5


def test_dropout_is_off_and_comes_back():
    model = tiny_model(dropout=0.5)
    expected = gl.watch.depends(model, TEXT)
    model.train()
    assert np.array_equal(gl.watch.depends(model, TEXT), expected)
    assert model.training


@pytest.mark.parametrize(("text", "left_out", "message"), [
    ([], [], "tokens: expected at least one"),
    ([[1, 2]], [0], "tokens: expected integers in one dimension"),
    ("text", [0], "tokens: expected integers in one dimension"),
    ([1, -1], [0], "tokens: expected ids from 0 to 16, got -1"),
    ([1, 2], [2], "left_out.*: expected positions from 0 to 1, got 2"),
    ([1, 2], [-1], "left_out.*: expected positions from 0 to 1, got -1"),
    ([1, 2], 1, "left_out.*: expected integers in one dimension"),
])  # fmt: skip
def test_wrong_input_is_one_line(text, left_out, message):
    model = tiny_model()
    for call in (
        lambda: gl.watch.without(model, text, left_out),
        lambda: gl.watch.depends(model, text, [left_out]),
    ):
        assert re.match(message, refusal(call))


def test_ids_that_are_never_predicted_are_refused():
    model = tiny_model(num_outputs=5)
    assert np.isfinite(gl.watch.depends(model, [16, 4, 0])).all()
    found = refusal(gl.watch.depends, model, [1, 7])
    assert found == "tokens: the model predicts ids below 5, got 7"


@pytest.mark.parametrize(("options", "message"), [
    *(({"since": since}, "since: expected 0 to 1, got ") for since in (-1, 2, 0.5, None)),
    *(({"left_out": wrong}, "left_out.*: expected") for wrong in (5, "0", {0})),
    ({"left_out": [[0], []]}, r"left_out\[1\]: expected at least one"),
])  # fmt: skip
def test_wrong_options_are_one_line(options, message):
    assert re.match(message, refusal(gl.watch.depends, tiny_model(), [1, 2, 3], **options))
