"""A cache that went back is one that has not read the last tokens."""

from itertools import accumulate

import mlx.core as mx
import pytest
from helpers.models import VARIANTS, close, padded, tiny_model, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import trim_prompt_cache

from mlx_gateloop.model.cache import MAX_BYTES, MIN_CALLS, CannotTrim


@settings(max_examples=60)
@given(
    variant=st.sampled_from(list(VARIANTS.values())),
    calls=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    back=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    padding=st.sampled_from([None, "left", "right"]),
)
def test_tokens_after_a_trim_have_the_logits_without_the_others(variant, calls, back, padding):
    model, text = tiny_model(**variant), tokens(3 * 6 * 7 + 3, batch=2)
    cache, other = (
        padded(model, (9, 5), padding == "left") if padding else model.make_cache() for _ in "12"
    )
    read = 0
    for tokens_back in back:
        for end in accumulate(calls, initial=read):
            if end > read:
                model(text[:, read:end], cache)
            read = end
        n = min(tokens_back, read)
        assert trim_prompt_cache(cache, n) == n
        read -= n
    if read:
        model(text[:, :read], other)
    close(model(text[:, read : read + 3], cache), model(text[:, read : read + 3], other))


def read_one_by_one(model, cache, count):
    for token in mx.split(tokens(count), count, axis=1):
        model(token, cache)


def test_single_steps_go_back_exactly():
    model = tiny_model()
    cache, states = model.make_cache(), []
    for token in mx.split(tokens(9), 9, axis=1):
        states.append([layer[0] for layer in cache])
        model(token, cache)
    for expected in reversed(states):
        trim_prompt_cache(cache, 1)
        assert all(layer[0] is state for layer, state in zip(cache, expected, strict=True))


def test_more_than_is_held_is_an_error_that_changes_nothing(monkeypatch):
    monkeypatch.setattr("mlx_gateloop.model.cache.MAX_BYTES", 0)
    model = tiny_model()
    cache, whole = model.make_cache(), model.make_cache()
    read_one_by_one(model, cache, 20)
    read_one_by_one(model, whole, 20)
    with pytest.raises(CannotTrim, match=r"cannot go back over 6 tokens; read the prompt again"):
        trim_prompt_cache(cache, MIN_CALLS + 1)
    assert mx.array_equal(model(tokens(1), cache), model(tokens(1), whole))
    trim_prompt_cache(cache, MIN_CALLS)


def test_padding_that_was_finalized_is_not_trimmed():
    model = tiny_model()
    cache = padded(model, (4, 2), left=False)
    model(tokens(4, batch=2), cache)
    cache[0].finalize()
    cache[0].prepare(lengths=[1, 1])
    model(tokens(1, batch=2), cache)
    assert cache[0].trim(1) == 1
    with pytest.raises(CannotTrim):
        cache[0].trim(1)


def test_the_bytes_held_are_bounded():
    model = tiny_model(hidden_size=64, num_heads=2, conv_size=4)  # a state of 16 kB
    cache = model.make_cache()
    read_one_by_one(model, cache, 64)
    state = sum(entry.nbytes for entry in cache[0].cache)
    assert MAX_BYTES - state < cache[0].nbytes - state <= MAX_BYTES
    model(tokens(4000), cache)  # too many to hold what was read
    with pytest.raises(CannotTrim):
        cache[0].trim(1)
    assert cache[0].nbytes <= state + MAX_BYTES
    assert cache[0].trim(4000) == 4000


def test_a_state_that_someone_set_is_the_beginning():
    model = tiny_model()
    cache = model.make_cache()
    model(tokens(5), cache)
    cache[0][0] = mx.zeros_like(cache[0][0])
    with pytest.raises(CannotTrim):
        cache[0].trim(1)
    cache[1].filter(mx.array([0]))
    with pytest.raises(CannotTrim):
        cache[1].trim(1)
