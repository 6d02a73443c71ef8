"""Models for mlx_lm commands, and what became of them."""

from functools import partial

import mlx.core as mx
import mlx_lm
import numpy as np
from helpers.models import chat_tokenizer, parameters, tiny_model
from mlx_lm.tuner.datasets import TextDataset

from mlx_gateloop.io.models import OUR_CODE, save
from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.model.lm import is_state_transition

TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(40, 240))
PROMPT = "3 times 3"
load = partial(mlx_lm.load, model_config=OUR_CODE)  # it knows our type


def saved(path, tokenizer=None, **options):
    """A tiny model that answers in printable characters."""
    tokenizer = tokenizer or chat_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128}
    model = tiny_model(**sizes, **options)
    # Random bytes are seldom text; two decoders need not agree on what they stand for.
    model.lm_head.bias = mx.where(printable(tokenizer), 0, -30.0)
    save(model, tokenizer, path)
    return str(path)


def printable(tokenizer):
    characters = set(map(chr, range(33, 127)))
    texts = (tokenizer.decode([n]) for n in range(len(tokenizer.get_vocab())))
    return mx.array([text in characters for text in texts])


def logits(path, **options):
    """For every character of a text, the logits of those that the model may answer with."""
    model, tokenizer = load(str(path), **options)
    every = np.array(model(mx.array([tokenizer.encode(TEXT[:200])])).astype(mx.float32))
    return every[..., np.array(printable(tokenizer))]


def quality(path, directory):
    ours, original = (logits(p).ravel() for p in (path, directory))
    return np.corrcoef(ours, original)[0, 1]


def greedy(model, tokenizer, prompt, count):
    tokens = tokenizer.encode(prompt)
    for _ in range(count):
        tokens.append(mx.argmax(model(mx.array([tokens]))[0, -1]).item())
        if tokens[-1] in tokenizer.eos_token_ids:
            break
    return tokens[len(tokenizer.encode(prompt)) :]


def assert_transitions_untouched(path, directory=None):
    """State transitions are float32 Linears, with the original's values if it is given."""
    model, _ = load(str(path))
    transitions = {name: w for name, w in parameters(model).items() if is_state_transition(name)}
    assert len(transitions) == 2 * 2 * 2  # layers, gamma and theta, weight and bias
    assert {w.dtype for w in transitions.values()} == {mx.float32}
    for layer in model.layers:
        assert type(layer.time_mixing.gamma_proj) is StateTransitionLinear
    if directory:
        original = parameters(load(directory)[0])
        assert all(mx.array_equal(w, original[name]) for name, w in transitions.items())
    return model


def local_dataset(args, tokenizer):
    rows = [{"text": line} for line in TEXT.splitlines()]
    return TextDataset(rows, tokenizer), TextDataset(rows[:8], tokenizer), []
