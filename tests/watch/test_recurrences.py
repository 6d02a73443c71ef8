"""Edits of mlx-lm's recurrences, against a plain loop over the tokens of each."""

import mlx.core as mx
import pytest
from helpers.cases import first
from helpers.edits import looped
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
    "drop and amplify": [Edit(0, tokens=[1], write=0), Edit(0, tokens=[2, 3], write=3)],
    "set": [Edit(0, channels=[2], tokens=[0, 4], value=2.0), Edit(0, tokens=[2], value=0)],
    "freeze a channel": [Edit(0, channels=[1], tokens=[2, 4], keep=1)],
    "half": [Edit(1, keep=0.5), Edit(1, channels=[0, 3], tokens=[1], keep=0.25)],
}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("kind", first(3, EDITS))
def test_edits_are_exact(name, kind):
    model, edits = recurrent_model(name), EDITS[kind]
    instrumented = Instrumented(model)
    layers = len(instrumented.names)
    edits = [Edit(**vars(e) | {"layer": e.layer % layers}) for e in edits]
    for layer, path in enumerate(instrumented.names):
        (function,) = instrumented.recurrences[layer]
        instrumented.edited[path] = looped(function, [e for e in edits if e.layer == layer])
    expected = model(TEXT, model.make_cache())
    instrumented.detach()
    before = parts(model)
    plain = model(TEXT, model.make_cache())
    with gl.watch.edit(model, *edits):
        close(model(TEXT, model.make_cache()), expected)
    cache = model.make_cache()
    with gl.watch.edit(model, *edits):
        pieces = [model(TEXT[:, a:b], cache) for a, b in ((0, 3), (3, 4), (4, LENGTH))]
    # Its norms of heads amplify rounding: 2.3e-5 on an AMD EPYC.
    close(mx.concatenate(pieces, 1), expected, 5e-5 if name == "gla" else 2e-5)
    assert parts(model) == before
    assert mx.array_equal(model(TEXT, model.make_cache()), plain)
