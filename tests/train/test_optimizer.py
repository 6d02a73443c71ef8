import math

import mlx.core as mx
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
