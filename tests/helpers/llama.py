"""A tiny llama of mlx-lm, as a control: a fault that it has too is not of this project."""

import json
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
from helpers.mlx_lm_commands import printable
from helpers.models import chat_tokenizer
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs


def save_tiny_llama(path: Path) -> Path:
    """Save a llama of bytes that answers in printable characters."""
    tokenizer = chat_tokenizer()
    args = ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        rms_norm_eps=1e-5,
        max_position_embeddings=32768,
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
    )
    mx.random.seed(0)
    model = Model(args)
    weights = tree_flatten(model.parameters(), destination={})
    # No head bias here: words that are not printable get no logit at all.
    weights["lm_head.weight"] *= mx.where(printable(tokenizer), 1, 0)[:, None]
    path.mkdir(parents=True)
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(asdict(args)))
    tokenizer.save_pretrained(path)
    return path
