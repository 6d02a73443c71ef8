from math import log

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.data.task import UNASKED, Samples
from mlx_gateloop.errors import InputError
from mlx_gateloop.evaluate import evaluate, evaluate_task
from mlx_gateloop.lm import Model, ModelArgs


class Bigram(nn.Module):
    """Logits that depend on the last token alone, so that windows make no difference."""

    def __init__(self, size):
        super().__init__()
        self.table = mx.random.normal((size, size), key=mx.random.key(0))
        self.shapes = set()

    def __call__(self, tokens):
        self.shapes.add(tokens.shape)
        return self.table[tokens]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 5))
def test_every_token_but_the_first_counts_once(count, length, batch_size):
    tokens = np.random.default_rng(count).integers(0, 7, count).astype(np.uint16)
    model = Bigram(7)
    result = evaluate(model, tokens, num_bytes=3 * count, length=length, batch_size=batch_size)
    table = np.array(model.table, np.float64)
    log_probability = table - np.log(np.exp(table).sum(-1, keepdims=True))
    nats = -log_probability[tokens[:-1], tokens[1:]].sum()
    assert result.tokens == count - 1
    assert result.loss_nats == pytest.approx(nats / (count - 1), rel=1e-5)
    assert result.perplexity == pytest.approx(np.exp(nats / (count - 1)), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(nats / log(2) / (3 * count), rel=1e-5)
    assert model.shapes == {(batch_size, min(length, count - 1))}, (
        "one shape, so that nothing is traced twice"
    )


def test_windows_start_from_an_empty_state():
    mx.random.seed(0)
    model = Model(
        ModelArgs(
            vocab_size=13, hidden_size=8, num_hidden_layers=1, intermediate_size=8, dropout=0.5
        )
    )
    model.train()
    tokens = np.random.default_rng(0).integers(0, 13, 31)
    result = evaluate(model, tokens, num_bytes=30, length=10, batch_size=2)
    assert model.training, "the mode is put back"

    model.eval()
    windows = mx.array(tokens[:30].reshape(3, 10)), mx.array(tokens[1:].reshape(3, 10))
    alone = nn.losses.cross_entropy(model(windows[0]), windows[1], reduction="mean").item()
    assert result.loss_nats == pytest.approx(alone, rel=1e-5)
    joined = evaluate(model, tokens, num_bytes=30, length=30, batch_size=1)
    assert joined.loss_nats != pytest.approx(alone, rel=1e-5)


def test_a_hopeless_model_has_infinite_perplexity():
    model = Bigram(7)
    model.table = 10000 * mx.eye(7)
    result = evaluate(model, np.array([1, 2]), num_bytes=2, length=4, batch_size=1)
    assert result.loss_nats == pytest.approx(10000)
    assert result.perplexity == float("inf")


@pytest.mark.parametrize("tokens", [[], [3]])
def test_nothing_to_predict(tokens):
    with pytest.raises(InputError, match="fewer than two tokens"):
        evaluate(Bigram(7), np.array(tokens, np.int32), num_bytes=1, length=4, batch_size=1)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_a_task_is_scored_where_it_asks(batch_size):
    inputs = np.array([[0, 1, 2], [2, 2, 1], [1, 0, 0]], np.int32)
    model = Bigram(3)
    table = np.array(model.table, np.float64)
    log_probability = table - np.log(np.exp(table).sum(-1, keepdims=True))
    best = table.argmax(1)
    wrong = (best + 1) % 3
    targets = np.where(inputs == 1, wrong[inputs], best[inputs]).astype(np.int32)
    targets[0, 0] = targets[2, 1] = UNASKED
    asked = targets != UNASKED
    score = evaluate_task(model, Samples(inputs, targets, targets), batch_size)
    np.testing.assert_array_equal(score.right, asked & (inputs != 1))
    assert score.accuracy == 4 / 7
    nats = -log_probability[inputs[asked], targets[asked]].mean()
    assert score.loss_nats == pytest.approx(nats, rel=1e-5)
    assert score.others == {"accuracy": 4 / 7}
