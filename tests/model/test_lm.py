"""The model: sizes, names of weights, precision and training."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.models import close, parameters, tiny_model, tokens
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from mlx_gateloop.model.lm import PRESETS, Model, is_state_transition


# Parameter counts: the paper's "125M" is, by our conjecture, the second reading.
@pytest.mark.parametrize(("preset", "count"), [
    ("wikitext103", 114_267_217), ("125m", 123_627_217),
    ("demo", 3_880_448), ("memory_horizon", 154_355),
])  # fmt: skip
def test_parameter_counts(preset, count):
    model = Model(PRESETS[preset])  # lazy: nothing of it is ever computed
    assert sum(w.size for w in parameters(model).values()) == count


@pytest.mark.parametrize(("dtype", "atol"), [(mx.float16, 0.02), (mx.bfloat16, 0.15)])
def test_half_precision_weights_stay_close(dtype, atol):
    model = tiny_model()
    prompt = tokens(40)
    exact = model(prompt)
    cast, old = model.cast_predicate, model.parameters()
    model.update(tree_map_with_path(lambda path, w: w.astype(dtype) if cast(path) else w, old))
    kept = {n for n, w in parameters(model).items() if w.dtype == mx.float32}
    assert kept == {n for n in parameters(model) if is_state_transition(n)}
    logits = model(prompt)
    assert logits.dtype == dtype
    close(logits.astype(mx.float32), exact, atol)


def test_a_compiled_training_step_learns(model):
    model.train()
    batch, targets = tokens(40, batch=2), tokens(40, batch=2, seed=1)
    state = [model.state]

    def loss(inputs, targets):
        return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs, targets):
        value, gradients = nn.value_and_grad(model, loss)(inputs, targets)
        model.update(tree_map(lambda w, g: w - 0.05 * g, model.parameters(), gradients))
        return value, gradients

    plain, _ = nn.value_and_grad(model, loss)(batch, targets)
    first, gradients = step(batch, targets)
    mx.eval(state)
    close(first, plain)
    flat = tree_flatten(gradients, destination={})
    assert flat.keys() == parameters(model).keys()
    for name, gradient in flat.items():
        assert np.isfinite(np.array(gradient)).all(), name
        assert mx.any(gradient != 0), name
    assert step(batch, targets)[0] < first
