"""The laws of the cache: chunks, steps, padding and batches change no logits."""

import mlx.core as mx
import pytest
from helpers.models import GROWING, VARIANTS, check_padding, close, padded, tiny_model, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import BatchKVCache

from mlx_gateloop.errors import InputError


def test_a_prompt_in_chunks_is_the_whole_prompt(model):
    prompt = tokens(70, batch=2)
    cache = model.make_cache()
    chunks = [model(part, cache) for part in mx.split(prompt, [1, 2, 3, 34], axis=1)]
    close(mx.concatenate(chunks, axis=1), model(prompt))


@settings(max_examples=30)
@given(
    variant=st.sampled_from([{}, {"conv_size": 4}, *GROWING.values()]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    chunk=st.integers(1, 10),
    left=st.booleans(),
)
def test_padding_and_batching_change_no_logits(variant, lengths, chunk, left):
    model, padding = tiny_model(**variant), [max(lengths) - n for n in lengths]
    if "mixer" in variant:  # attention
        cache = [BatchKVCache(padding if left else [0] * len(lengths)) for _ in model.layers]
        for layer in cache:
            layer.prepare(lengths=lengths, right_padding=None if left else padding)
    else:
        cache = padded(model, lengths, left)
    check_padding(model, cache, lengths, chunk, left)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_cache_does_not_grow(options):
    model = tiny_model(**options)
    cache = model.make_cache()
    model(tokens(3), cache)
    before = [c[0].shape for c in cache]
    model(tokens(50), cache)
    assert [c[0].shape for c in cache] == before
    is_real = options.get("gate") == "real" or options.get("transition") == "linear_attention"
    assert {shape[1] for shape in before} == {1 if is_real else 2}  # parts of complex numbers
    assert {c[0].dtype for c in cache} == {mx.float32}


def test_a_quantized_cache_is_refused_in_one_line():
    model = tiny_model(hidden_size=64, num_heads=1, mixer="softmax", transition="none")
    cache = model.make_cache()
    model(tokens(3), cache)
    with pytest.raises(InputError, match=r"^kv_bits: .* leave it out$"):
        model(tokens(1), [layer.to_quantized(group_size=64, bits=8) for layer in cache])


def test_decoding_holds_no_more_memory_with_every_token(monkeypatch):
    monkeypatch.setattr("mlx_gateloop.model.cache.MAX_BYTES", 1000)  # to go back
    model = tiny_model(num_hidden_layers=3)
    cache = model.make_cache()
    for layer in cache:
        layer.left_padding = mx.array([0, 1])
    held = []
    for _ in range(60):
        mx.eval(model(tokens(1, batch=2), cache))
        mx.synchronize()
        held.append(mx.get_active_memory())
    # What a step needs is given back a little later or earlier.
    assert min(held[40:]) <= max(held[:20])


@pytest.mark.parametrize(("length", "batch"), [(0, 1), (1, 0)])
def test_empty_input_gives_empty_logits(length, batch):
    model = tiny_model()
    prompt = mx.zeros((batch, length), mx.int32)
    assert model(prompt).shape == (batch, length, model.args.vocab_size)
