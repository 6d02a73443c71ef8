"""Lookup decoding: the same tokens in fewer passes."""

from itertools import product
from unittest.mock import Mock

import mlx.core as mx
import pytest
from helpers.cases import first
from helpers.models import GROWING, VARIANTS, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from mlx_gateloop.generate import Draw, Sampling
from mlx_gateloop.model.lookup import SIZES, Ngrams, lookup_tokens

GREEDY = Sampling(temperature=0)


def looked_up(model, prompt, count, sampling=GREEDY, processors=()):
    how = {"max_tokens": count, "sampler": Draw(sampling), "logits_processors": processors}
    return list(lookup_tokens(prompt, model, prompt_cache=model.make_cache(), **how))


@pytest.mark.parametrize("name", ["paper", "real heads", "softmax"])
@pytest.mark.parametrize("penalty", first(1, [None, 1.3]))
@pytest.mark.parametrize("temperature", [0, 0.5])
def test_tokens_are_those_of_mlx_lm(name, penalty, temperature):
    """The guesses are often wrong, and the random numbers are those without guesses."""
    model = tiny_model(seed=4, **(VARIANTS | GROWING)[name])
    sampling = Sampling(temperature, seed=1)
    processors = make_logits_processors(repetition_penalty=penalty)
    for prompt in ([3], [1, 2, 3, 4] * 5, list(range(17)) * 2):
        for count in (1, 40):
            how = {"sampler": Draw(sampling), "logits_processors": processors}
            steps = generate_step(mx.array(prompt), model, max_tokens=count, **how)
            expected = [token for token, _ in steps]
            assert looked_up(model, prompt, count, sampling, processors) == expected


def test_text_that_repeats_takes_fewer_passes():
    """A greedy text of a tiny model soon goes round and round."""
    counted = Mock(wraps=tiny_model(seed=4))
    assert len(looked_up(counted, [1, 2, 3], 300)) == 300
    assert counted.call_count < 100


@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_guess_followed_the_longest_known_ngram(tokens):
    text = Ngrams()
    for end, token in enumerate(tokens, 1):
        guess, known = text.add(token), tokens[:end]
        places = product(SIZES, range(end - 1, 0, -1))
        starts = [n for size, n in places if known[max(0, n - size) : n] == known[-size:]]
        assert guess == (known[starts[0] :][: len(guess)] if starts else [])
        assert bool(guess) == bool(starts)
