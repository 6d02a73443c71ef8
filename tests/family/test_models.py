"""The models against logits of flash-linear-attention's own kernels, and against float64."""

import mlx.core as mx
import numpy as np
import pytest
from helpers import family
from helpers.errors import refusal
from helpers.family import close, family_model, golden, random_tokens, standalone_copy
from helpers.models import check_padding, padded
from mlx.utils import tree_flatten
from mlx_gateloop.convert.sources.fla_reference import FlaReference

from mlx_gateloop.family.layers import log_gate, lower_bounds

names = pytest.mark.parametrize("name", family.CONFIGS)


def double(model):
    weights = dict(tree_flatten(model.parameters()))
    return lambda name: np.array(weights[name]).astype(np.float64)


@names
@pytest.mark.parametrize("length", family.LENGTHS)
def test_logits_are_those_of_flash_linear_attention(name, length):
    model, tokens = family_model(name), random_tokens(length)
    close(model(mx.array(tokens)), golden(name)[length])
    close(FlaReference(model.args, double(model)).logits(tokens), golden(name)[length])


@names
def test_the_file_of_a_saved_directory_computes_the_same(name):
    copy = standalone_copy(family_model(name))
    close(copy(mx.array(random_tokens(61))), golden(name)[61])
    check_padding(copy, padded(copy, (61, 41), True), (61, 41), 19, True, close)


@names
def test_a_text_in_chunks_is_the_whole_text_and_the_cache_does_not_grow(name):
    model = family_model(name)
    cache, logits, sizes = model.make_cache(), [], set()
    for part in mx.split(mx.array(random_tokens(61)), [1, 2, 3, 40], axis=1):
        logits.append(model(part, cache))
        sizes.add(tuple(entry.nbytes for entry in cache))
    close(mx.concatenate(logits, axis=1), golden(name)[61])
    assert len(sizes) == 1
    assert cache[0][0].dtype == mx.float32


@names
@pytest.mark.parametrize("left", [True, False])
def test_padding_and_batching_change_no_logits(name, left):
    model, lengths = family_model(name), (61, 9, 1)
    check_padding(model, padded(model, lengths, left), lengths, 9, left, close)


@names
def test_gradients_are_those_of_the_equations_in_float64(name):
    torch = pytest.importorskip("torch", reason="its autograd makes the gradients to compare with")
    # with less, the norm of an output near zero is steep, and torch's float32 is off by 1e-3 too
    model, tokens = family_model(name, norm_eps=1.0), random_tokens(23, batch=2)
    weight = np.random.RandomState(0).standard_normal((2, 23, model.args.vocab_size))

    def loss(parameters):
        model.update(parameters)
        return (model(mx.array(tokens)) * mx.array(weight)).sum()

    gradients = dict(tree_flatten(mx.grad(loss)(model.parameters())))
    double_of = double(model)
    leaves = {key: torch.tensor(double_of(key), requires_grad=True) for key in gradients}
    logits = FlaReference(model.args, leaves.__getitem__, torch).logits(torch.from_numpy(tokens))
    (logits * torch.from_numpy(weight)).sum().backward()
    for key, leaf in leaves.items():
        close(gradients[key], leaf.grad.numpy())


@pytest.mark.parametrize("name", ["gla", "hgrn"])
def test_old_checkpoints_load_with_their_names(name):
    old = family.old_names(family.family_weights(family_model(name)))
    again = family_model(name)
    again.load_weights(list(again.sanitize(old).items()))
    close(again(mx.array(random_tokens(9))), golden(name)[9])


@pytest.mark.parametrize(("name", "options", "message"), [
    ("gla", {"attn": {"layers": [1]}}, "config: attn must be None, got {'layers': [1]}"),
    ("gla", {"hidden_act": "powlu"}, "config: hidden_act must be 'swish' or 'silu'"),
    ("gla", {"num_heads": 3}, "expand_k: expected a multiple of num_heads 3 over hidden_size"),
    ("gla", {"num_kv_heads": 4}, "num_kv_heads: expected a divisor of num_heads 2, got 4"),
    ("gla", {"hidden_size": "wide"}, "config: hidden_size must be a valid integer"),
    ("gla", {"feature_map": "relu"}, "config: feature_map must be None, got 'relu'"),
    ("hgrn2", {"expand_ratio": 5}, "expand_ratio: expected a divisor of hidden_size 32, got 5"),
    ("hgrn2", {"expand_ratio": None}, "expand_ratio: expected a number, or num_heads"),
    ("hgrn", {"expand_ratio": 2}, "expand_ratio: expected 1 with lower bounds, got 2"),
    ("hgrn", {"attnres_block_size": 4}, "attnres_block_size must be None, got 4"),
])  # fmt: skip
def test_what_the_models_lack_is_named(name, options, message):
    assert message in refusal(family_model, name, **options)


def test_a_bound_that_rounds_to_one_is_a_gate():
    weight = mx.array(np.random.RandomState(96).standard_normal((24, 64)) * 3)
    for bound in lower_bounds(weight)[1:]:
        log_a, rest = log_gate(mx.zeros(64), bound)
        assert mx.isfinite(log_a).all()
        assert mx.all(rest >= 0)


def test_heads_may_be_given_instead_of_their_size():
    model = family_model("hgrn2", expand_ratio=None, num_heads=4)
    close(model(mx.array(random_tokens(9))), golden("hgrn2")[9])
