"""Model directories that attack whoever loads or runs them; no kind of them works."""

import json
import os

import mlx.core as mx
from helpers.models import save_tiny_model

SLOW_TEXT = "a" * 40 + "b"  # a message that `(a+)+$` needs 2^40 steps for


def written(name, content):
    data = content.encode() if isinstance(content, str) else content
    return lambda model: (model / name).write_bytes(data)


def edited(name, **changes):
    def write(model):
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | changes))

    return write


def _fifo(name):
    def make(model):
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return make


def _sparse(name):
    """A file of a terabyte that takes no space on the disk."""
    return lambda model: os.truncate(model / name, 10**12)


def _complex(model):
    weights = mx.load(str(model / WEIGHTS))
    weights = {n: w.astype(mx.complex64) for n, w in weights.items()}
    mx.save_safetensors(str(model / WEIGHTS), weights)


TEMPLATE, TOKENIZER, WEIGHTS = "chat_template.jinja", "tokenizer.json", "model.safetensors"
SLOW = {"Regex": "(a+)+$"}
SPLIT = {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": SLOW, "content": "x"}
# Kinds that are noticed when the first message is answered; the model itself loads.
TEMPLATES = {
    "nested loops": written(TEMPLATE, "{% for i in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3),
    "long string": written(TEMPLATE, "{{ 'a' * 2000000000 }}"),
    "power": written(TEMPLATE, "{{ 9**(9**9) }}"),
    "long error": written(TEMPLATE, "{{ raise_exception('/home/secret\n' ~ 'x' * 50000000) }}"),
    "endless recursion": written(TEMPLATE, "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
}
# Send SLOW_TEXT to these.
TOKENIZERS = {
    "regex": edited(TOKENIZER, pre_tokenizer=SPLIT),
    "normalizer": edited(TOKENIZER, normalizer=REPLACE),
}
# Kinds that are refused before they are loaded.
FILES = {
    "many layers": edited("config.json", num_hidden_layers=3_000_000),
    "wide": edited("config.json", hidden_size=2**30, num_heads=2**30, intermediate_size=2**30),
    "large vocabulary": edited("config.json", vocab_size=2**31 - 1, num_outputs=2**31 - 1),
    "fifo": _fifo("extra.json"), "fifo as tokenizer": _fifo(TOKENIZER),
    "fifo as weights": _fifo("model-2.safetensors"), "fifo as template": _fifo(TEMPLATE),
    "deep json": written("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
    "marked json": written("config.json", "\ufeff{}"), "long json": _sparse("config.json"),
    "list": written("tokenizer_config.json", "[]"), "long tokenizer": _sparse(TOKENIZER),
    "long weights": _sparse(WEIGHTS), "complex numbers": _complex,
    "long header": written(WEIGHTS, (2**62).to_bytes(8, "little") + b"{" * 1000),
}  # fmt: skip
KINDS = TEMPLATES | TOKENIZERS | FILES


def save_hostile_model(path, kind):
    save_tiny_model(path, chat=True, hidden_size=16, intermediate_size=32)
    KINDS[kind](path)
    return path
