"""Model directories that attack whoever loads or runs them; no kind of them works."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from helpers.models import save_tiny_model

SLOW_TEXT = "a" * 40 + "b"  # a message that `(a+)+$` needs 2^40 steps for


def _template(source: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        (model / "chat_template.jinja").write_text(source)

    return write


def _edit(name: str, **changes: object) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(content | changes))

    return write


def _split(regex: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _replace(regex: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": "x"}


def _fifo(name: str) -> Callable[[Path], None]:
    def make(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return make


def _written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(content) and None


def _sparse(name: str, size: int) -> Callable[[Path], None]:
    """A file of this size that takes no room on the disk."""

    def grow(model: Path) -> None:
        with (model / name).open("ab") as file:
            file.truncate(size)

    return grow


LOOP = "{% for i in range(99999) %}"
# Kinds that are noticed when the first message is answered; the model itself loads.
TEMPLATES = {
    "nested loops": _template(LOOP * 3 + "x" + "{% endfor %}" * 3),
    "long string": _template("{{ 'a' * 2000000000 }}"),
    "power": _template("{{ 9**(9**9) }}"),
    "long error": _template("{{ raise_exception('/home/secret/key\n' ~ 'x' * 50000000) }}"),
    "endless recursion": _template("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
}
# Send SLOW_TEXT to these.
TOKENIZERS = {
    "regex": _edit("tokenizer.json", pre_tokenizer=_split("(a+)+$")),
    "normalizer": _edit("tokenizer.json", normalizer=_replace("(a+)+$")),
}
# Kinds that are refused before they are loaded.
FILES = {
    "many layers": _edit("config.json", num_hidden_layers=3_000_000),
    "wide": _edit("config.json", hidden_size=2**30, num_heads=2**30, intermediate_size=2**30),
    "large vocabulary": _edit("config.json", vocab_size=2**31 - 1, num_outputs=2**31 - 1),
    "fifo": _fifo("extra.json"),
    "fifo as tokenizer": _fifo("tokenizer.json"),
    "fifo as weights": _fifo("model-2.safetensors"),
    "fifo as template": _fifo("chat_template.jinja"),
    "deep json": _written("config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "long json": _sparse("config.json", 10**12),
    "long tokenizer": _sparse("tokenizer.json", 10**12),
    "long weights": _sparse("model.safetensors", 10**12),
    "long header": _written("model.safetensors", (2**62).to_bytes(8, "little") + b"{" * 1000),
}
KINDS = TEMPLATES | TOKENIZERS | FILES


def save_hostile_model(path: Path, kind: str) -> Path:
    """Save a model of one of the `KINDS` to a directory."""
    save_tiny_model(path, chat=True, hidden_size=16, intermediate_size=32)
    KINDS[kind](path)
    return path


def save_hostile_models(folder: Path) -> list[str]:
    """Save one model of every kind; returns their names."""
    names = [kind.replace(" ", "-") for kind in KINDS]
    for name, kind in zip(names, KINDS, strict=True):
        save_hostile_model(folder / name, kind)
    return names
