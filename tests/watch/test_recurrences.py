"""Edits of mlx-lm's recurrences, against a plain loop over the tokens of each."""

import mlx.core as mx
import pytest
from helpers.edits import looped
from helpers.errors import refusal
from helpers.models import close
from helpers.recurrent import parts, recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.watch import Edit, Instrumented

LENGTH = 6
TEXT = mx.array([[5, 6, 7, 8, 9, 3]])
GATED = ["qwen3_next", "olmo_hybrid", "mamba2", "granitemoehybrid", "recurrent_gemma", "rwkv7"]
GATED += ["kimi_linear", "bailing_moe_linear", "bailing_hybrid", "gla", "hgrn2", "hgrn"]
EDITS = {
    "wipe": [Edit(0, tokens=[3], keep=0)],
    "freeze a channel": [Edit(0, channels=[1], tokens=[2, 4], keep=1)],
    "half": [Edit(1, keep=0.5), Edit(1, channels=[0, 3], tokens=[1], keep=0.25)],
    "drop and amplify": [Edit(0, tokens=[1], write=0), Edit(0, tokens=[2, 3], write=3)],
    "set": [Edit(0, channels=[2], tokens=[0, 4], value=2.0), Edit(0, tokens=[2], value=0)],
}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("kind", EDITS)
def test_edits_are_exact(name, kind):
    model, edits = recurrent_model(name), EDITS[kind]
    instrumented = Instrumented(model)
    layers = len(instrumented.names)
    edits = [Edit(**vars(e) | {"layer": e.layer % layers}) for e in edits]
    for layer, path in enumerate(instrumented.names):
        (function,) = instrumented.recurrences[layer]
        mine = [e for e in edits if e.layer == layer]
        instrumented.edited[path] = looped(function, mine)
    expected = model(TEXT, model.make_cache())
    instrumented.detach()
    before = parts(model)
    plain = model(TEXT, model.make_cache())
    with gl.watch.edit(model, *edits):
        close(model(TEXT, model.make_cache()), expected)
    cache = model.make_cache()
    with gl.watch.edit(model, *edits):
        pieces = [model(TEXT[:, a:b], cache) for a, b in ((0, 3), (3, 4), (4, LENGTH))]
    close(mx.concatenate(pieces, 1), expected)
    assert parts(model) == before
    assert mx.array_equal(model(TEXT, model.make_cache()), plain)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("mamba", Edit(0), "edits: layer 0 computes its decays inside ssm_step"),
        ("llama", Edit(0), "model: it has no recurrent layer"),
        ("kimi_k3", Edit(0, keep=0), "keep: the gate of this layer has a lower bound"),
        ("kimi_linear", Edit(0, [1], write=0), "write: this layer writes whole heads"),
        ("mamba2", Edit(2), "edits[0].layer: expected 0 to 1, got 2"),
        ("mamba2", Edit(0, [4]), "edits[0].channels: expected 0 to 3, got 4"),
        ("mamba2", Edit(0, tokens=[6]), "edits[0].tokens: expected 0 to 5, got 6"),
    ],
)
def test_what_cannot_be_edited_is_one_line(name, edit, message):
    model = recurrent_model(name)
    before = parts(model)

    def run():
        with gl.watch.edit(model, edit):
            model(TEXT, model.make_cache())

    assert refusal(run).startswith(message)
    assert parts(model) == before
