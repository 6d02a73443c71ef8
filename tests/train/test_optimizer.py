import math

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.optimizer import cosine_with_warmup, make_optimizer

SMALL = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16}


def rates(schedule, steps):
    return [schedule(mx.array(step, mx.uint64)).item() for step in steps]


def test_warmup_is_linear_and_learns_from_the_first_step():
    schedule = cosine_with_warmup(peak=8e-3, warmup=4, steps=24)
    assert rates(schedule, range(4)) == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3])


def test_cosine_falls_from_the_peak_to_zero():
    schedule = cosine_with_warmup(peak=8e-3, warmup=4, steps=24)
    quarter = 4e-3 * (1 + math.cos(math.pi / 4))
    assert rates(schedule, [4, 9, 14, 24, 30]) == pytest.approx([8e-3, quarter, 4e-3, 0, 0])


def test_no_warmup_starts_at_the_peak():
    assert rates(cosine_with_warmup(1.0, 0, 10), [0, 5]) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    "transition", ["data_controlled", "fixed", "linear_attention", "lru", "s4d_lin", "s5"]
)
def test_groups_of_the_paper(transition):
    """With no gradient only weight decay moves weights, and only in matrices of the third group."""
    model = Model(ModelArgs(**SMALL, transition=transition))
    # Biases start at 0, where decay would not show.
    model.update(tree_map(mx.ones_like, model.parameters()))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1, weight_decay=0.5), steps=5)
    optimizer.init(model.trainable_parameters())
    optimizer.update(model, tree_map(mx.zeros_like, model.parameters()))
    for path, weight in tree_flatten(model.parameters()):
        is_transition = any(part in path for part in ("gamma", "theta", "constant"))
        decays = weight.ndim == 2 and not is_transition
        assert weight.max().item() == pytest.approx(0.95 if decays else 1.0), path


def test_state_transitions_may_decay():
    model = Model(ModelArgs(**SMALL))
    model.update(tree_map(mx.ones_like, model.parameters()))
    settings = OptimizerConfig(
        learning_rate=0.1, weight_decay=0.0, state_transition_weight_decay=0.5
    )
    optimizer = make_optimizer(settings, steps=5)
    optimizer.init(model.trainable_parameters())
    optimizer.update(model, tree_map(mx.zeros_like, model.parameters()))
    for path, weight in tree_flatten(model.parameters()):
        is_transition = "gamma" in path or "theta" in path
        assert weight.max().item() == pytest.approx(0.95 if is_transition else 1.0), path


@pytest.mark.parametrize("transition", ["data_controlled", "lru"])
def test_state_transition_has_its_own_rate(transition):
    """The first bias-corrected Adam step is the rate times the gradient's sign."""
    model = Model(ModelArgs(**SMALL, transition=transition))
    before = dict(tree_flatten(model.parameters()))
    settings = OptimizerConfig(
        learning_rate=0.01, state_transition_learning_rate=0.002, weight_decay=0.0
    )
    optimizer = make_optimizer(settings, steps=5)
    optimizer.init(model.trainable_parameters())
    optimizer.update(model, tree_map(mx.ones_like, model.parameters()))
    for path, weight in tree_flatten(model.parameters()):
        is_transition = any(part in path for part in (".gamma_proj.", ".theta_proj.", ".constant."))
        rate = 0.002 if is_transition else 0.01
        assert (before[path] - weight).max().item() == pytest.approx(rate, rel=1e-4), path


def test_rates_follow_the_schedule_in_every_group():
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1.0, warmup_steps=2), steps=4)
    model = Model(ModelArgs(**SMALL))
    optimizer.init(model.trainable_parameters())
    seen = []
    for step in range(3):
        optimizer.schedule(mx.array(step, mx.uint64))
        optimizer.update(model, tree_map(mx.zeros_like, model.parameters()))
        seen.append([group.learning_rate.item() for group in optimizer.optimizers])
    assert seen == [pytest.approx([rate] * 3) for rate in (0.5, 1.0, 1.0)]


def random_gradients(model, steps):
    mx.random.seed(1)
    return [
        tree_map(lambda leaf: mx.random.normal(leaf.shape), model.parameters())
        for _ in range(steps)
    ]


def test_each_weight_moves_as_in_an_adamw_of_its_own():
    """The weights are those of MLX's groups, which know nothing of joined arrays."""
    model, plain = (Model(ModelArgs(**SMALL | {"vocab_size": 3000})) for _ in range(2))
    plain.update(model.parameters())
    settings = OptimizerConfig(
        learning_rate=0.01, state_transition_learning_rate=0.002, weight_decay=0.3, warmup_steps=0
    )
    optimizer = make_optimizer(settings, steps=10**9)
    reference = optim.MultiOptimizer(
        [
            optim.AdamW(rate, betas=list(settings.betas), weight_decay=decay, bias_correction=True)
            for rate, decay in ((0.002, 0.0), (0.01, 0.0), (0.01, 0.3))
        ],
        optimizer.filters[:-1],
    )
    optimizer.init(model.trainable_parameters())
    assert [len(group.state) - 2 for group in optimizer.optimizers] == [1, 1, 3]  # 2 scalars
    for gradient in random_gradients(model, steps=3):
        optimizer.update(model, gradient)
        reference.update(plain, gradient)
    saved = dict(tree_flatten(reference.state))
    assert optimizer.by_weight(model.parameters()).keys() == saved.keys()  # as ever in checkpoints
    expected = dict(tree_flatten(plain.parameters()))
    for path, weight in tree_flatten(model.parameters()):
        np.testing.assert_allclose(weight, expected[path], rtol=1e-6, atol=1e-7, err_msg=path)


def test_the_state_by_weight_is_restored():
    """Its moments have the shapes of their weights, whichever of these are joined."""
    model = Model(ModelArgs(**SMALL))
    weights = model.trainable_parameters()
    optimizer, other = (make_optimizer(OptimizerConfig(), steps=5) for _ in range(2))
    for one in (optimizer, other):
        one.init(weights)
    for gradient in random_gradients(model, steps=2):
        optimizer.update(model, gradient)
    named = optimizer.by_weight(weights)
    for path, weight in tree_flatten(weights):
        (group,) = {key.split(".")[1] for key in named if f".{path}.m" in key}
        for moment in "mv":
            assert named[f"states.{group}.{path}.{moment}"].shape == weight.shape
    other.restore(named, weights)
    expected = dict(tree_flatten(optimizer.state))
    found = dict(tree_flatten(other.state))
    assert found.keys() == expected.keys()
    for key, leaf in found.items():
        assert mx.array_equal(leaf, expected[key]), key
