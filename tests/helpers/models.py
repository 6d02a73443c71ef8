"""Tiny models with random weights, for all tests."""

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop import Model, ModelArgs, save
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import TimeMixing
from mlx_gateloop.tokenizer import CHAT_TEMPLATE, byte_tokenizer, stop_token_ids

SIZES = {"vocab_size": 17, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
VARIANTS = {
    "paper": {}, "fixed": {"transition": "fixed"},
    "polar_abs": {"gate": "polar_abs"}, "real": {"gate": "real", "bias": False},
    "heads": {"num_heads": 2}, "real heads": {"num_heads": 2, "gate": "real", "input_scale": True},
    "scaled": {"input_scale": True, "longest_half_life": 9.0},
    "output gate": {"output_gate": True, "tie_word_embeddings": True},
    "lucidrains": {
        "gate": "polar_abs", "transition_per": "head", "mixing_size": 12, "num_heads": 3,
        "norm": "rms", "sub_norm": True, "output_gate": True, "projection_bias": False,
        "head_bias": False,
    },
    "post norm": {"norm_position": "post", "final_norm": False},
    "gated rnn": {
        "gate": "real", "input_gate": "tied", "query_activation": "sigmoid", "mixing_size": 12,
        "value_activation": "tanh", "state_activation": "tanh", "activation": "gelu_tanh",
        "final_norm": False, "num_outputs": SIZES["vocab_size"],
    },
    "convolution": {"conv_size": 4}, "no key": {"gate": "real", "input_gate": "none"},
    "linear attention": {"transition": "linear_attention", "num_heads": 2},
    "retnet": {"transition": "retnet", "num_heads": 2, "sub_norm": "head", "output_gate": True},
    "lru": {"transition": "lru"}, "s5": {"transition": "s5", "input_gate": "none"},
    "s4d lin": {"transition": "s4d_lin"}, "s4d inv": {"transition": "s4d_inv", "num_heads": 2},
    "lru as published": {"transition": "lru", "query": "constant", "input_gate": "none"},
}  # fmt: skip
GROWING = {
    "attention": {"mixer": "softmax", "transition": "none", "num_heads": 2},
    "rotary": {"mixer": "softmax", "transition": "none", "num_heads": 2, "rope_theta": 100.0},
    "softmax": {"mixer": "softmax"},
    "softmax heads": {"mixer": "softmax", "num_heads": 2, "transition_per": "head"},
    "softmax real": {"mixer": "softmax", "num_heads": 2, "gate": "real", "output_gate": True},
    "softmax negative": {"mixer": "softmax", "num_heads": 4, "gate": "polar_abs"},
    "softmax retnet": {"mixer": "softmax", "num_heads": 2, "transition": "retnet"},
}


def tiny_model(seed=0, **options):
    """A model in evaluation mode; the options are arguments of ModelArgs."""
    mx.random.seed(seed)
    model = Model(ModelArgs(**{**SIZES, **options}))
    model.eval()
    return model


def ruined(model):
    model.update(tree_map(lambda x: x * mx.nan, model.parameters()))
    return model


def time_mixing(**options):
    mx.random.seed(0)
    return TimeMixing(LayerArgs(**{"hidden_size": SIZES["hidden_size"], **options}))


def chat_tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def says(role, content):
    return {"role": role, "content": content}


def parameters(module):
    return tree_flatten(module.parameters(), destination={})


def never_end(model, tokenizer):
    """Keep a model from drawing a token that ends an answer, or another special one."""
    never = mx.array([*{*stop_token_ids(tokenizer), *tokenizer.all_special_ids}])
    model.lm_head.bias = mx.zeros(len(tokenizer)).at[never].add(-1e9)


def save_tiny_model(path, seed=0, chat=False, **options):
    tokenizer = chat_tokenizer() if chat else byte_tokenizer()
    save(tiny_model(seed, **{"vocab_size": len(tokenizer), **options}), tokenizer, path)
    return path


def tokens(length, batch=1, seed=0):
    """Random tokens `[batch, length]` of a tiny model."""
    return mx.array(np.random.default_rng(seed).integers(0, SIZES["vocab_size"], (batch, length)))


def close(actual, expected, atol=2e-5):
    """Assert that arrays agree to float32's rounding over a few layers."""
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-5)


def padded(model, lengths, left):
    """A cache for a batch of prompts of these lengths, padded on one side."""
    cache = model.make_cache()
    for layer in cache:
        if left:
            layer.left_padding = mx.array([max(lengths) - n for n in lengths])
        else:
            layer.prepare(lengths=list(lengths))
    return cache


def check_padding(model, cache, lengths, chunk, left, close=close):
    """Rows of a padded batch, read in chunks, have the logits of each prompt alone."""
    width = max(lengths)
    padding = [width - n for n in lengths]
    prompts = [tokens(n, seed=n) for n in lengths]
    sides = [(n, 0) if left else (0, n) for n in padding]
    batch = mx.concatenate([mx.pad(p, [(0, 0), s]) for p, s in zip(prompts, sides, strict=True)])
    parts = [model(batch[:, n : n + chunk], cache) for n in range(0, width, chunk)]
    logits = mx.concatenate(parts, axis=1)
    for layer in cache:
        layer.finalize()
    new = tokens(1, batch=len(lengths), seed=99)
    following = model(new, cache)
    for row, (prompt, n) in enumerate(zip(prompts, padding, strict=True)):
        own = model.make_cache()
        alone = slice(n, None) if left else slice(0, width - n)
        close(logits[row : row + 1, alone], model(prompt, own))
        close(following[row : row + 1], model(new[row : row + 1], own))
