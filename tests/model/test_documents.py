"""Packed documents: each is read as if it were alone, forward and backward."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from harness.platforms import OBSERVED
from helpers.errors import refusal
from helpers.family import CONFIGS, family_model
from helpers.models import GROWING, VARIANTS, close, tiny_model, tokens
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import ArraysCache, BatchKVCache, trim_prompt_cache

from mlx_gateloop.ops import backends
from mlx_gateloop.ops.pointwise import cross_entropy

LENGTHS = (5, 9, 4)


def check(model):
    documents = [tokens(length, batch=2, seed=length) for length in LENGTHS]
    packed = mx.concatenate(documents, 1)
    begins = [sum(LENGTHS[:n]) for n in range(len(LENGTHS))]
    starts = mx.array([[position in begins for position in range(sum(LENGTHS))]] * 2)

    def loss(parameters, inputs, *more):
        model.update(parameters)
        return cross_entropy(model(inputs, *more), inputs).sum() / packed.size

    parameters = model.trainable_parameters()
    alone = mx.concatenate([model(document) for document in documents], 1)
    close(model(packed, None, starts), alone, 1e-5)
    assert mx.abs(model(packed) - alone).max() > 1e-3, "without resets it leaks"

    for cut in (1, 5, 7, 12, 16) if isinstance(model.make_cache()[0], ArraysCache) else ():
        cache, read = model.make_cache(), []
        for part in (slice(0, cut), slice(cut, None)):
            read.append(model(packed[:, part], cache, starts[:, part]))
        close(mx.concatenate(read, 1), alone)
        if back := trim_prompt_cache(cache, 3):
            close(model(packed[:, -back:], cache, starts[:, -back:]), alone[:, -back:])

    together = mx.grad(loss)(parameters, packed, None, starts)
    parts = [mx.grad(loss)(parameters, document) for document in documents]
    expected = dict(tree_flatten(tree_map(lambda *g: sum(g), *parts)))
    for name, gradient in tree_flatten(together):
        close(gradient, expected[name], 5e-5)


@pytest.mark.parametrize("name", [*VARIANTS, *GROWING])
def test_a_packed_document_in_every_variant(name):
    check(tiny_model(**(VARIANTS | GROWING)[name]))


@pytest.mark.parametrize("backend", ["mlx", *OBSERVED])
@pytest.mark.parametrize("name", ["paper", "heads"])
def test_a_packed_document_on_every_backend(name, backend, monkeypatch):
    """The other tests take the fastest, mostly `cpu`; GPU kernels run on the CPU."""
    monkeypatch.setattr(backends.gpu, "kernels", OBSERVED.get)
    monkeypatch.setattr(backends, "choose", lambda _: backends.BACKENDS[backend])
    check(tiny_model(**VARIANTS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_document_of_every_model_of_the_family(name):
    model = family_model(name)
    model.model.recomputes_blocks = True
    check(model)


@pytest.mark.parametrize("make", [tiny_model, partial(family_model, "gla")])
def test_marks_that_would_be_read_wrongly_are_refused(make):
    model, text, starts = make(), tokens(3), mx.zeros((1, 3), mx.bool_)
    for wrong in (starts[:, :1], starts[0], starts.astype(mx.float32), np.zeros((1, 3), bool)):
        assert refusal(model, text, None, wrong).startswith("starts: expected a bool array")
    cache = model.make_cache()
    cache[0].left_padding, cache[0].lengths = mx.array([0]), mx.array([3])  # as merged caches have
    model(text, cache, starts)
    assert cache[0].lengths.item() == 0
    for name, value in {"left_padding": mx.array([1]), "lengths": mx.array([2])}.items():
        cache = model.make_cache()
        setattr(cache[0], name, value)
        assert refusal(model, text, cache, starts).startswith("starts: not with padding")


def test_softmax_has_no_documents_after_keys_of_others():
    model, text, starts = tiny_model(mixer="softmax"), tokens(3), mx.zeros((1, 3), mx.bool_)
    model(text, cache := model.make_cache(), starts)
    assert refusal(model, text, cache, starts).startswith("starts: not with the keys")
    trim_prompt_cache(cache, 3)
    model(text, cache, starts)
    padded = [BatchKVCache([1]) for _ in model.layers]
    assert refusal(model, text, padded, starts).startswith("starts: not with padding")
