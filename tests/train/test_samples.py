"""Sample texts and half-lives of a model while it is trained."""

import math

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import tiny_model

from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.train.samples import first_prompt, half_lives, sample

ASK, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}


def test_half_lives_of_known_transitions():
    model = tiny_model(transition="fixed")
    for number, layer in enumerate(model.layers):
        layer.time_mixing.gamma = mx.full((8,), 1.0 + number)
    expected = [math.log(2) / math.log1p(math.exp(-gamma)) for gamma in (1.0, 2.0)]
    assert half_lives(model, np.arange(9)) == pytest.approx(expected, rel=1e-5)
    assert all(layer.time_mixing.observe is None for layer in model.layers)
    assert half_lives(tiny_model(transition="linear_attention"), np.arange(9)) == [1e9, 1e9]


def test_a_sample_is_the_same_whatever_was_drawn_before():
    model, tokenizer = tiny_model(vocab_size=262), byte_tokenizer()
    before = mx.array(mx.random.state[0])
    one = sample(model, tokenizer, "", 12)
    assert mx.array_equal(before, mx.random.state[0]), "training goes on as without it"
    mx.random.seed(5)
    assert sample(model, tokenizer, "", 12) == one


def test_a_prompt_ends_before_the_first_answer():
    cases = [[ASK, ANSWER, ASK]], ["a text", [ASK, ANSWER]], [[ASK]], []
    assert [first_prompt(case) for case in cases] == [[ASK], "", "", ""]
