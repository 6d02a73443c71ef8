"""A source's weights through the key table, and both models on the same tokens."""

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_gateloop.convert.sources import SOURCES, detect
from mlx_gateloop.convert.verify import random_tokens

from mlx_gateloop.model.lm import ModelArgs

from .family import random_weight

TOLERANCE = 2e-5  # relative to the largest logit, in float32


def random_state(source, args):
    """Random tensors of a source whose tensors have the shapes of ours."""
    ours = tree_flatten(source.build(args).parameters(), destination={})
    return {
        rule.source: random_weight(rule.source, ours[rule.ours[0]].shape)
        for rule in source.table(args)
    }


def paper_state(vocab_size, bias=True, **options):
    sizes = {"hidden_size": 8, "intermediate_size": 20, "num_hidden_layers": 3}
    biases = dict.fromkeys(("bias", "projection_bias", "head_bias"), bias)
    args = ModelArgs(vocab_size=vocab_size, **sizes, **biases, **options)
    return random_state(SOURCES["paper"], args)


def shapes_of(state):
    return {name: array.shape for name, array in state.items()}


def converted(state, kind, settings=None):
    """Our model with the weights of a state dict of NumPy arrays, and the source's reference.

    Every name on both sides is in the table once.
    """
    shapes = shapes_of(state)
    source = detect(shapes)
    assert kind == source.kind
    args = source.infer(shapes, settings or {}).args
    rules, model = source.table(args), source.build(args)
    assert sorted(rule.source for rule in rules) == sorted(state)
    ours = tree_flatten(model.parameters(), destination={})
    assert sorted(key for rule in rules for key in rule.ours) == sorted(ours)

    weights = {}
    for rule in rules:
        for key, array in zip(rule.ours, rule.forward(mx.array(state[rule.source])), strict=True):
            assert array.shape == ours[key].shape, key
            weights[key] = array
    model.update(tree_unflatten(list(weights.items())))
    return model, source.reference(args, lambda name: mx.array(state[name]))


def difference(ours, source):
    """The largest difference relative to the largest value."""
    source = np.asarray(source)
    assert ours.shape == source.shape
    return float(np.abs(np.array(ours) - source).max() / np.abs(source).max())


def assert_same(model, reference, length, vocab_size):
    """Compare logits, at once and decoded token by token, and hidden states."""
    prompt = random_tokens(vocab_size, length)
    logits = reference.logits(prompt)
    assert difference(model(mx.array(prompt)), logits) <= TOLERANCE
    cache = model.make_cache()
    steps = [model(mx.array(prompt[:, [n]]), cache) for n in range(length)]
    assert difference(mx.concatenate(steps, axis=1), logits) <= TOLERANCE
    x = model.model.embed_tokens(mx.array(prompt))
    for layer, state in zip(model.layers, reference.hidden_states(prompt), strict=True):
        x = layer(x)
        assert difference(x, state) <= TOLERANCE
