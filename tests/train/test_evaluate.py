from math import log

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.data import Stream
from mlx_gateloop.train.evaluate import evaluate


class Bigram(nn.Module):
    """Logits that depend on the last token alone, so that windows make no difference."""

    def __init__(self, size):
        super().__init__()
        self.table = mx.random.normal((size, size), key=mx.random.key(0))
        self.shapes = set()

    def __call__(self, tokens):
        self.shapes.add(tokens.shape)
        return self.table[tokens]


def score(model, tokens, length, batch_size=2, num_bytes=30, **protocol):
    return evaluate(model, Stream(np.array(tokens)), num_bytes, length, batch_size, **protocol)


@settings(max_examples=25)
@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 5))
def test_every_token_but_the_first_counts_once(count, length, batch_size):
    tokens = np.random.default_rng(count).integers(0, 7, count).astype(np.uint16)
    model = Bigram(7)
    result = score(model, tokens, length, batch_size, 3 * count)
    table = np.array(model.table, np.float64)
    log_probability = table - np.log(np.exp(table).sum(-1, keepdims=True))
    nats = -log_probability[tokens[:-1], tokens[1:]].sum()
    assert result.tokens == count - 1
    assert result.loss_nats == pytest.approx(nats / (count - 1), rel=1e-5)
    assert result.perplexity == pytest.approx(np.exp(nats / (count - 1)), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(nats / log(2) / (3 * count), rel=1e-5)
    shape = (min(batch_size, -(-(count - 1) // length)), min(length, count - 1))
    assert model.shapes == {shape}, "one shape, so that nothing is traced twice"


@pytest.fixture
def model():
    model = tiny_model(vocab_size=13, num_hidden_layers=1, dropout=0.5, longest_half_life=20)
    model.train()  # evaluation switches dropout off
    return model


def nats_of(model, tokens):
    """Of each token but the first, after all before it."""
    logits = model(mx.array(tokens[:-1])[None])[0]
    return np.array(nn.losses.cross_entropy(logits, mx.array(tokens[1:])))


@pytest.mark.parametrize(("count", "stride"), [(31, None), (31, 4), (30, 1), (12, 10), (9, 3)])
def test_windows_score_what_is_new_after_an_empty_state(model, count, stride):
    tokens, length = np.random.default_rng(0).integers(0, 13, count), 10
    result = score(model, tokens, length, stride=stride)
    assert model.training, "the mode is put back"
    model.eval()
    stride, scored = stride or length, []
    for target in range(1, count):  # every target after as much context as its window gives
        begin = max(0, -(-(target - length) // stride)) * stride
        scored.append(nats_of(model, tokens[begin : target + 1])[-1])
        assert target < length or target - begin > length - stride
    assert result.tokens == count - 1
    assert result.loss_nats == pytest.approx(np.mean(scored), rel=1e-5)


def test_a_carried_state_has_seen_everything_whatever_the_window(model):
    tokens = np.random.default_rng(0).integers(0, 13, 31)
    results = [score(model, tokens, n, carry=True).loss_nats for n in (1, 7, 10, 30, 99)]
    model.eval()
    assert results == pytest.approx([nats_of(model, tokens).mean()] * 5, rel=1e-5)


def test_a_hopeless_model_has_infinite_perplexity():
    model = Bigram(7)
    model.table = 10000 * mx.eye(7)
    result = score(model, [1, 2], 4)
    assert result.loss_nats == pytest.approx(10000)
    assert result.perplexity == float("inf")


def test_nothing_to_predict():
    for tokens in ([], [3]):
        assert "fewer than two tokens" in refusal(score, Bigram(7), tokens, 4)
