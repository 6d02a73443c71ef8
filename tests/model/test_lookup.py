"""Lookup decoding: the same tokens in fewer passes."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import GROWING, VARIANTS, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors
from scipy.special import chdtri

from mlx_gateloop.generate import Sampling, sampler
from mlx_gateloop.model.lookup import SIZES, Ngrams, lookup_tokens


class Counted:
    """A model that counts its passes over the text after the prompt."""

    def __init__(self, model):
        self.model, self.calls, self.make_cache = model, 0, model.make_cache

    def __call__(self, tokens, cache):
        self.calls += 1
        return self.model(tokens, cache)


def looked_up(model, prompt, count, draw=lambda logs: mx.argmax(logs, -1), processors=()):
    how = {"max_tokens": count, "sampler": draw, "logits_processors": processors}
    return list(lookup_tokens(prompt, model, prompt_cache=model.make_cache(), **how))


MODELS = {name: (VARIANTS | GROWING)[name] for name in ("paper", "real heads", "softmax")}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("penalty", [None, 1.3])
def test_greedy_tokens_are_those_of_mlx_lm(options, penalty):
    model = tiny_model(seed=4, **options)
    processors = make_logits_processors(repetition_penalty=penalty)
    for prompt in ([3], [1, 2, 3, 4] * 5, list(range(17)) * 2):
        for count in (1, 40):
            steps = generate_step(
                mx.array(prompt), model, max_tokens=count, logits_processors=processors
            )
            expected = [token for token, _ in steps]
            assert looked_up(model, prompt, count, processors=processors) == expected


def test_text_that_repeats_takes_fewer_passes():
    """A greedy text of a tiny model soon goes round and round."""
    counted = Counted(tiny_model(seed=4))
    assert len(looked_up(counted, [1, 2, 3], 300)) == 300
    assert counted.calls < 100


def test_guesses_change_no_probability():
    """The third token's frequencies in 300 draws against its exact distribution, by chi-square.

    The prompt has every pair of its tokens before, so that there are guesses.
    """
    model, prompt, size = tiny_model(seed=1, vocab_size=3), [0, 1, 2, 0, 2, 1, 0, 0, 1, 1, 2, 2], 3
    pairs = [[*prompt, a, b] for a in range(size) for b in range(size)]
    chances = mx.softmax(model(mx.array(pairs)), axis=-1)
    first, second = (mx.array([p[n] for p in pairs]) for n in (-2, -1))
    rows = mx.arange(len(pairs))
    expected = (chances[rows, -3, first] * chances[rows, -2, second]) @ chances[:, -1]
    draw, _ = sampler(Sampling(temperature=1.0, seed=5))
    counts, draws, counted = np.zeros(size), 300, Counted(model)
    for _ in range(draws):
        counts[looked_up(counted, prompt, 3, draw)[2]] += 1
    assert counted.calls < 4 * draws + draws  # a prefill, and fewer than four passes
    expected = draws * np.array(expected, np.float64)
    assert ((counts - expected) ** 2 / expected).sum() < chdtri(size - 1, 1e-3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_guess_followed_the_longest_known_ngram(tokens):
    text = Ngrams()
    for end, token in enumerate(tokens, 1):
        guess, known = text.add(token), tokens[:end]
        places = []
        for size in SIZES:
            last = tuple(known[-size:])
            places = [
                n for n in range(end - 1, 0, -1) if tuple(known[max(0, n - size) : n]) == last
            ]
            if places:
                break
        assert guess == (known[places[0] :][: len(guess)] if places else [])
        assert bool(guess) == bool(places)
