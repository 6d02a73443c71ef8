from itertools import count

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.models import tiny_model
from mlx.utils import tree_flatten

from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.train.checkpoint import state_of
from mlx_gateloop.train.chunks import zero_states
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.optimizer import make_optimizer
from mlx_gateloop.train.step import lowered, make_step

TOKENS = np.random.default_rng(0).integers(0, 17, (4, 9)).astype(np.int32)
SETTINGS = {"clip_norm": "optimizer.clip_norm", "chunk": "sequence_chunk", "dtype": "dtype"}
BATCHES = [(TOKENS[:, :-1], TOKENS[:, 1:])]


def trainer(blocks=False, scale=1.0, targets=TOKENS[:, 1:].size, **changes):
    """A model, its optimizer, and a function that takes the next step with some batches."""
    settings = {"optimizer.learning_rate": 1e-2, "optimizer.weight_decay": 0.05, "steps": 20}
    settings |= {key: changes.pop(name) for name, key in SETTINGS.items() if name in changes}
    config = TrainConfig.load(None, settings | {"start": "published"})
    model = tiny_model(**changes)
    model.train()
    model.model.recomputes_blocks = blocks
    optimizer = make_optimizer(config.optimizer, steps=20)
    optimizer.init(model.trainable_parameters())
    take_step = make_step(model, optimizer, config, targets)
    numbers = count()
    return model, optimizer, lambda batches: take_step(batches, next(numbers), scale)


def leaves(model, optimizer):
    return {key: np.array(leaf) for key, leaf in state_of(model, optimizer).items()}


def assert_close(one, other, atol):
    assert one.keys() == other.keys()
    for key, leaf in one.items():
        np.testing.assert_allclose(leaf, other[key], rtol=0, atol=atol, err_msg=key)


def moments_by_weight(model, optimizer):
    joined = [
        {name: value["m"] for name, value in group.items() if isinstance(value, dict)}
        for group in optimizer.state
    ]
    moments = optimizer.split(joined, model.trainable_parameters())
    return {key: np.array(leaf) for key, leaf in tree_flatten(moments)}


def test_accumulated_parts_weigh_by_their_targets():
    """A short batch, one with few targets and one without any make the step of the whole."""
    inputs, targets = BATCHES[0]
    masked = targets.copy()
    masked[1, 2:] = masked[3] = -1
    parts = [(inputs[cut], masked[cut]) for cut in (slice(0, 1), slice(1, 3), slice(3, 4))]
    (*state, step), (*other_state, other_step) = trainer(), trainer()
    assert other_step(parts) == pytest.approx(step([(inputs, masked)]), rel=1e-5)
    # A gradient of the size of rounding errors may take either sign in Adam's first step.
    assert_close(moments_by_weight(*state), moments_by_weight(*other_state), atol=1e-7)


def test_a_short_batch_weighs_by_its_targets():
    """A quarter of a batch moves the mean gradient by a quarter of its own, not by all of it."""
    inputs, targets = BATCHES[0]
    (*state, step), (*own_state, own_step) = trainer(), trainer(targets=8)
    loss, norm = step([(inputs[:1], targets[:1])])
    own_loss, own_norm = own_step([(inputs[:1], targets[:1])])
    assert loss == pytest.approx(own_loss)
    assert 4 * norm == pytest.approx(own_norm, rel=1e-5)
    moments, own = moments_by_weight(*state), moments_by_weight(*own_state)
    clip = min(1, 1 / norm) / min(1, 1 / own_norm)
    assert_close(moments, {key: clip * leaf / 4 for key, leaf in own.items()}, atol=1e-7)


def test_a_step_without_targets_has_no_gradient():
    model, optimizer, step = trainer()
    loss, norm = step([(TOKENS[:, :-1], np.full_like(TOKENS[:, 1:], -1))])
    assert (np.isnan(loss), norm) == (True, 0)
    assert all(np.isfinite(leaf).all() for leaf in leaves(model, optimizer).values())


def test_gradient_is_clipped_to_the_norm():
    model, optimizer, step = trainer(clip_norm=0.01)
    assert step(BATCHES)[1] > 0.1
    moments = moments_by_weight(model, optimizer).values()
    clipped = np.sqrt(sum(np.square(leaf / 0.1).sum() for leaf in moments))  # m = 0.1 g
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_changes_nothing_but_the_schedule():
    """The rates follow the run's steps, and Adam's bias correction the updates."""
    (model, optimizer, step), (_, other, other_step) = trainer(), trainer()
    for number in range(5):
        good, before = model.model.norm.bias, leaves(model, optimizer)
        if number == 1:
            model.model.norm.bias = good + mx.inf
        _, norm = step(BATCHES)
        other_step(BATCHES)
        model.model.norm.bias = good if number == 1 else model.model.norm.bias
        after = leaves(model, optimizer)
        changed = {key for key in before if not np.array_equal(before[key], after[key])}
        rates = {key for key in before if key.endswith(".learning_rate")}
        assert (changed <= rates) == (not np.isfinite(norm)) == (number == 1)
        found = [[group.learning_rate.item() for group in o.groups] for o in (optimizer, other)]
        assert found[0] == found[1]
    steps = [[group.step.item() for group in o.groups] for o in (optimizer, other)]
    assert steps == [[4] * 3, [5] * 3]


def test_checkpointed_blocks_make_the_same_steps_in_less_memory():
    """Peak memory of a gradient grows less with depth."""
    peaks, moments, batch = [], [], [(np.tile(TOKENS, (2, 15)),) * 2]
    for blocks in (False, True):
        *state, step = trainer(blocks=blocks, num_hidden_layers=8, intermediate_size=256)
        step(batch)
        moments.append(moments_by_weight(*state))
        peaks.append(peak_memory(lambda step=step: step(batch)))
    assert peaks[1] < 0.5 * peaks[0]
    assert_close(*moments, atol=1e-6)


@pytest.mark.parametrize(("chunk", "changes"), [
    (1, {}), (4, {}), (20, {}), (3, {"num_heads": 2}), (3, {"transition": "lru"}),
    (3, {"gate": "real"}), (3, {"blocks": True}), (3, {"conv_size": 4}),
    (3, {"dtype": "bfloat16", "scale": 8.0, "conv_size": 4}),
], ids=str)  # fmt: skip
def test_sequences_in_chunks_make_the_same_steps(chunk, changes):
    """Chunks that divide the 8 tokens, that do not, and that are longer; some unasked targets."""
    inputs, targets = BATCHES[0]
    targets = np.where(np.arange(8) % 5 == 1, -1, targets)
    (*state, step), (*chunked_state, chunked) = trainer(**changes), trainer(chunk=chunk, **changes)
    rel, atol = (1e-5, 1e-7) if "dtype" not in changes else (0.02, 3e-4)
    assert chunked([(inputs, targets)]) == pytest.approx(step([(inputs, targets)]), rel=rel)
    assert_close(moments_by_weight(*state), moments_by_weight(*chunked_state), atol=atol)


def test_carried_states_make_the_gradient_of_the_text_with_constant_states():
    """Two batches in a row: the second is learned as the end of both, from a constant state."""
    (model, optimizer, step), (_, again, step_again) = (trainer(chunk=3, targets=16) for _ in "12")
    optimizer.carried = zero_states(model, 4)
    inputs, targets = BATCHES[0]
    first, second = (slice(0, 4), slice(4, 8))
    cache, model = model.make_cache(), trainer()[0]
    model(mx.array(inputs[:, first]), cache)
    constant = [layer[0] for layer in cache]

    def loss(parameters):
        model.update(parameters)
        for layer, state in zip(cache, constant, strict=True):
            layer[0] = state
        logits = model(mx.array(inputs[:, second]), cache)
        return cross_entropy(logits, mx.array(targets[:, second])).sum()

    parameters = model.trainable_parameters()
    step([(inputs[:, first], targets[:, first])])
    assert mx.allclose(optimizer.carried[1][0], constant[1], atol=1e-6)
    again.carried = [[state] for state in constant]
    value, norm = step_again([(inputs[:, second], targets[:, second])])
    nats, gradient = mx.value_and_grad(loss)(parameters)
    assert value == pytest.approx(nats.item() / 16, rel=1e-5)
    squares = sum((leaf / 16).square().sum().item() for _, leaf in tree_flatten(gradient))
    assert norm == pytest.approx(squares**0.5, rel=1e-4)


def test_chunks_take_less_memory():
    batch = [(np.zeros((1, 2048), np.int32),) * 2]
    steps = [trainer(chunk=chunk, intermediate_size=256)[2] for chunk in (256, None)]
    for step in steps:
        step(batch)
    peaks = [peak_memory(lambda step=step: step(batch)) for step in steps]
    assert peaks[0] < 0.3 * peaks[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_computes_on_float32_weights(dtype):
    exact, *_, exact_step = trainer()
    model, _, step = trainer(dtype=dtype)
    for _ in range(3):
        loss, _ = step(BATCHES)
        assert loss == pytest.approx(exact_step(BATCHES)[0], abs=0.02)
    assert {leaf.dtype for _, leaf in tree_flatten(model.parameters())} == {mx.float32}
    saved = dict(tree_flatten(lowered(model, model.parameters(), getattr(mx, dtype))))
    assert saved["lm_head.weight"].dtype == getattr(mx, dtype)
    assert saved["model.layers.0.time_mixing.gamma_proj.weight"].dtype == mx.float32
    assert 0 < mx.abs(exact.lm_head.weight - model.lm_head.weight).max().item() < 0.03


def test_scaled_float16_keeps_the_gradient_of_unlikely_tokens():
    """Probabilities of 1e-8 make gradients that are 0 in float16, as in a large vocabulary."""
    batch = [(TOKENS[:, :-1], np.zeros_like(TOKENS[:, 1:]))]

    def head_gradient(**changes):
        model, optimizer, step = trainer(vocab_size=1000, **changes)
        model.lm_head.bias = mx.where(mx.arange(1000) == 0, 0.0, -19.0)
        step(batch)
        return moments_by_weight(model, optimizer)["lm_head.weight"]

    exact = head_gradient()
    kept = head_gradient(dtype="float16", scale=2.0**16)
    assert (head_gradient(dtype="float16") == 0).mean() > 0.9
    assert (kept == 0).mean() < 0.01
    np.testing.assert_allclose(kept, exact, rtol=0, atol=0.01 * np.abs(exact).max())
    assert np.median(np.abs(kept / exact - 1)) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scale_of_one_changes_no_bit(dtype):
    """The gradient is that of the plain mean."""
    model, optimizer, step = trainer(dtype=dtype)
    inputs, targets = map(mx.array, BATCHES[0])
    full = model.parameters()

    def mean_loss(parameters):
        model.update(lowered(model, parameters, getattr(mx, dtype)))
        return cross_entropy(model(inputs), targets).sum() / targets.size

    expected = mx.compile(mx.value_and_grad(mean_loss))(full)
    joined = optimizer.join(expected[1])
    clipped, norm = mx.compile(lambda tree: optim.clip_grad_norm(tree, 1.0))(joined)
    model.update(full)
    assert step(BATCHES) == (expected[0].item(), norm.item())
    got = moments_by_weight(model, optimizer)
    for key, leaf in tree_flatten(optimizer.split(clipped, full)):
        np.testing.assert_array_equal(got[key], np.array((1 - 0.9) * leaf), err_msg=key)
