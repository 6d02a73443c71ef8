"""The model: sizes, names of weights, precision and training."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.models import close, tiny_model, tokens
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from mlx_gateloop.model.lm import PRESETS, Model, is_state_transition


def parameters(model):
    return tree_flatten(model.parameters(), destination={})


# Parameter counts: the paper's "125M" is, by our conjecture, the second reading.
@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("wikitext103", 114_267_217),
        ("125m", 123_627_217),
        ("demo", 3_880_448),
        ("memory_horizon", 154_355),
    ],
)
def test_parameter_counts(preset, count):
    model = Model(PRESETS[preset])  # lazy: nothing of it is ever computed
    assert sum(w.size for w in parameters(model).values()) == count


def test_state_transition_paths():
    paths = {n for n in parameters(tiny_model()) if is_state_transition(n)}
    assert len(paths) == 2 * 2 * 2
    assert all("gamma_proj" in n or "theta_proj" in n for n in paths)
    constant = {n for n in parameters(tiny_model(transition="lru")) if is_state_transition(n)}
    assert {n.rsplit(".", 1)[1] for n in constant} == {"nu", "theta", "log_scale"}
    assert is_state_transition("model.layers.0.time_mixing.gamma")
    assert not is_state_transition("model.layers.0.time_mixing.q_proj.weight")


def test_the_ends_of_the_model_are_as_asked_for():
    names = set(parameters(tiny_model(norm="rms", head_bias=False)))
    assert {"model.norm.weight", "lm_head.weight"} <= names
    assert {"model.norm.bias", "lm_head.bias"}.isdisjoint(names)
    assert "model.norm.weight" not in parameters(tiny_model(final_norm=False))
    model = tiny_model(final_norm=False)
    x = model.model.embed_tokens(tokens(5))
    for layer in model.layers:
        x = layer(x)
    assert mx.array_equal(model(tokens(5)), model.lm_head(x))


@pytest.mark.parametrize(("dtype", "atol"), [(mx.float16, 0.02), (mx.bfloat16, 0.15)])
def test_half_precision_weights_stay_close(dtype, atol):
    model = tiny_model()
    prompt = tokens(40)
    exact = model(prompt)
    model.update(
        tree_map_with_path(
            lambda path, w: w.astype(dtype) if model.cast_predicate(path) else w, model.parameters()
        )
    )
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
