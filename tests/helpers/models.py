"""Tiny models with random weights, for all tests."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_gateloop import Model, ModelArgs, save
from mlx_gateloop.tokenizer import CHAT_TEMPLATE, byte_tokenizer

SIZES = {"vocab_size": 17, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}


def tiny_model(seed: int = 0, **options: Any) -> Model:
    """A model in evaluation mode; the options are arguments of ModelArgs."""
    mx.random.seed(seed)
    model = Model(ModelArgs(**{**SIZES, **options}))
    model.eval()
    return model


def chat_tokenizer() -> Any:
    """A tokenizer of bytes with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tiny_model(path: Path, seed: int = 0, chat: bool = False, **options: Any) -> Path:
    """Save a tiny model of bytes, with its tokenizer, to a directory."""
    tokenizer = chat_tokenizer() if chat else byte_tokenizer()
    save(tiny_model(seed, **{"vocab_size": len(tokenizer), **options}), tokenizer, path)
    return path
