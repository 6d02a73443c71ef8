import mlx.core as mx
import numpy as np
import pytest
from helpers.memory import peak_memory
from mlx.utils import tree_flatten

from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.optimizer import make_optimizer
from mlx_gateloop.train.step import checkpoint_blocks, lowered, make_step

TOKENS = np.random.default_rng(0).integers(0, 17, (4, 9)).astype(np.int32)
BATCHES = [(TOKENS[:, :-1], TOKENS[:, 1:])]


def trainer(blocks=False, clip_norm=1.0, accumulate=1, dtype=mx.float32, **changes):
    mx.random.seed(0)
    shape = {"vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 16}
    model = Model(ModelArgs(**(shape | changes)))
    model.train()
    if blocks:
        checkpoint_blocks(model)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2), steps=20)
    optimizer.init(model.trainable_parameters())
    return model, optimizer, make_step(model, optimizer, clip_norm, accumulate, dtype)


def leaves(model, optimizer):
    return {
        key: np.array(leaf) for key, leaf in tree_flatten([model.parameters(), optimizer.state])
    }


def assert_close(one, other, atol):
    assert one.keys() == other.keys()
    for key, leaf in one.items():
        np.testing.assert_allclose(leaf, other[key], rtol=0, atol=atol, err_msg=key)


def test_steps_lower_the_loss():
    *_, step = trainer()
    losses = [step(BATCHES)[0] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3


def test_a_negative_target_is_not_learned():
    """Two sequences cut to what is asked make the step of whole ones where the rest is not."""
    (*cut_state, cut), (*masked_state, masked) = trainer(), trainer()
    inputs, targets = BATCHES[0]
    masked_targets = targets.copy()
    masked_targets[:, 3:] = -1
    loss, norm = cut([(inputs[:, :3], targets[:, :3])])
    assert masked([(inputs, masked_targets)]) == pytest.approx((loss, norm), rel=1e-5)
    assert_close(leaves(*masked_state), leaves(*cut_state), atol=1e-5)


def test_two_half_batches_make_the_same_step_as_the_whole():
    (*whole_state, whole), (*half_state, halves) = trainer(), trainer(accumulate=2)
    loss, norm = whole(BATCHES)
    parts = [(inputs[i::2], targets[i::2]) for inputs, targets in BATCHES for i in range(2)]
    assert halves(parts) == pytest.approx((loss, norm), rel=1e-5)
    # A gradient of the size of rounding errors may take either sign in Adam's first step.
    first, second = (
        {key: leaf for key, leaf in leaves(*state).items() if key.endswith(".m")}
        for state in (whole_state, half_state)
    )
    assert_close(first, second, atol=1e-7)


def test_gradient_is_clipped_to_the_norm():
    model, optimizer, step = trainer(clip_norm=0.01)
    _, norm = step(BATCHES)
    assert norm > 0.1
    moments = [leaf for key, leaf in leaves(model, optimizer).items() if key.endswith(".m")]
    clipped = np.sqrt(sum(np.square(leaf / 0.1).sum() for leaf in moments))  # m = 0.1 g
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_changes_nothing():
    model, optimizer, step = trainer()
    step(BATCHES)
    good = model.model.norm.bias
    model.model.norm.bias = good + mx.inf
    before = leaves(model, optimizer)
    assert not np.isfinite(step(BATCHES)[1])
    after = leaves(model, optimizer)
    for key, leaf in before.items():
        np.testing.assert_array_equal(leaf, after[key], err_msg=key)
    model.model.norm.bias = good
    assert np.isfinite(step(BATCHES)[1])
    assert not np.array_equal(
        after["0.lm_head.weight"], leaves(model, optimizer)["0.lm_head.weight"]
    )


def test_checkpointed_blocks_make_the_same_steps():
    results = []
    for blocks in (False, True):
        model, optimizer, step = trainer(blocks=blocks)
        for _ in range(2):
            step(BATCHES)
        results.append(leaves(model, optimizer))
    assert_close(*results, atol=1e-6)


def test_checkpointed_blocks_recompute():
    """Peak memory of a gradient grows less with depth."""

    def peak(blocks):
        *_, step = trainer(blocks=blocks, num_hidden_layers=8, intermediate_size=512)
        tokens = np.zeros((8, 256), np.int32)
        step([(tokens, tokens)])
        return peak_memory(lambda: step([(tokens, tokens)]))

    assert peak(True) < 0.5 * peak(False)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_low_precision_computes_on_float32_weights(dtype):
    exact, *_, exact_step = trainer()
    model, _, step = trainer(dtype=dtype)
    for _ in range(3):
        loss, _ = step(BATCHES)
        assert loss == pytest.approx(exact_step(BATCHES)[0], abs=0.02)
    assert {leaf.dtype for _, leaf in tree_flatten(model.parameters())} == {mx.float32}
    saved = dict(tree_flatten(lowered(model, model.parameters(), dtype)))
    assert saved["lm_head.weight"].dtype == dtype
    assert saved["model.layers.0.time_mixing.gamma_proj.weight"].dtype == mx.float32
    difference = mx.abs(exact.lm_head.weight - model.lm_head.weight).max().item()
    assert 0 < difference < 0.03
