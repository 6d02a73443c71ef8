"""The paper's parameter groups, the schedule, and the update of joined arrays."""

import math

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from helpers.models import tiny_model
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.fused_update import make_update
from mlx_gateloop.train.optimizer import cosine_with_warmup, decided, make_optimizer

MLX = {
    "adamw": lambda *rates: optim.AdamW(rates[0], [0.9, 0.98], 1e-8, rates[1], True),
    "lion": lambda *rates: optim.Lion(rates[0], [0.9, 0.98], rates[1]),
    "adafactor": lambda rate, decay: optim.Adafactor(
        rate, relative_step=False, scale_parameter=False, weight_decay=decay
    ),
    "muon": lambda rate, decay: optim.Muon(rate, weight_decay=decay),
}


def is_transition(path):
    return any(part in path for part in ("gamma", "theta", "constant"))


@pytest.mark.parametrize(("name", "transition"), [
    *((name, "data_controlled") for name in MLX),
    *(("adamw", name) for name in ("fixed", "linear_attention", "lru", "s4d_lin", "s5")),
])  # fmt: skip
def test_each_weight_makes_the_steps_of_an_optimizer_of_mlx(name, transition):
    """Transition and phases have rates of their own; Muon takes the matrices of blocks alone."""
    size = 3000 if name == "adamw" else 17  # large arrays beside joined ones
    model, plain = (tiny_model(vocab_size=size, transition=transition) for _ in range(2))
    config = OptimizerConfig(
        name=name, learning_rate=0.1, state_transition_learning_rate=0.02,
        phase_share=None if transition == "fixed" else 0.5, weight_decay=0.05,
        state_transition_weight_decay=0.03, warmup_steps=2,
    )  # fmt: skip
    optimizer = make_optimizer(config, steps=10**9)
    optimizer.init(model.trainable_parameters())
    update, theirs = make_update(model, optimizer, 1e9), {}
    for step in range(3):
        keys = iter(mx.random.split(mx.random.key(step), 99))
        draw = lambda leaf, keys=keys: mx.random.normal(leaf.shape, key=next(keys))  # noqa: E731
        gradients = tree_map(draw, model.trainable_parameters())
        update(gradients, step, mx.array(1.0))
        weights = dict(tree_flatten(plain.parameters()))
        for path, gradient in tree_flatten(gradients):
            is_matrix = gradient.ndim == 2 and not is_transition(path)
            is_table = "embed" in path or "lm_head" in path
            kind = "adamw" if name == "muon" and (is_table or not is_matrix) else name
            decay = 0.05 if is_matrix and not (name == "muon" and is_table) else 0.0
            decay, rate = (0.03, 0.02) if is_transition(path) else (decay, 0.1)
            one = theirs.setdefault(path, MLX[kind](0.0, decay))
            rate = 0.05 if "theta" in path and transition != "fixed" else rate
            one.learning_rate = rate * min(1, (step + 1) / 2)
            weights[path] = one.apply_gradients({"w": gradient}, {"w": weights[path]})["w"]
        plain.load_weights(list(weights.items()))
    for path, weight in tree_flatten(model.parameters()):
        expected = dict(tree_flatten(plain.parameters()))[path]
        np.testing.assert_allclose(weight, expected, atol=2e-5, err_msg=path)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_bounds_of_hgrn_are_vectors_that_do_not_decay(name):
    config = OptimizerConfig(name=name, learning_rate=0.1, weight_decay=0.5)
    group_of = make_optimizer(config, steps=9).group_of
    assert [group_of(path, mx.ones((2, 3))) for path in ("m.lower_bounds", "m.weight")] == [1, 2]


def test_warmup_is_linear_and_then_a_cosine_falls_to_zero():
    schedule = cosine_with_warmup(peak=8e-3, warmup=4, steps=24)
    assert [schedule(step) for step in range(4)] == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3])
    rates = [schedule(step) for step in (4, 9, 14, 24, 30)]
    assert rates == pytest.approx([8e-3, 4e-3 * (1 + math.cos(math.pi / 4)), 4e-3, 0, 0])
    assert [cosine_with_warmup(1.0, 0, 10)(step) for step in (0, 5)] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(("per_epoch", "steps"), [(500, 500), (2.5, 100)])
def test_weights_average_the_updates_of_an_epoch(per_epoch, steps):
    config = decided(OptimizerConfig(learning_rate=0.02), per_epoch)
    assert 1 / (0.02 * config.weight_decay) == pytest.approx(steps)
    assert decided(OptimizerConfig(learning_rate=1e-320), per_epoch).weight_decay < math.inf
    chosen = OptimizerConfig(learning_rate=0.02, weight_decay=0.0)
    assert decided(chosen, per_epoch) == chosen
