"""Models of flash-linear-attention with random weights, which a name and a shape determine."""

import json
import sys
import zlib
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

import mlx_gateloop as gl
from mlx_gateloop.io.model_file import model_file

from .models import chat_tokenizer
from .reference import as_numpy, error

GOLDEN = Path(__file__).parent.parent / "family" / "golden"
COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 40, "intermediate_size": 48}
CONV = {"use_short_conv": True, "conv_size": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "gla": {"model_type": "gla", "num_heads": 2},
    "gla_grouped": {"model_type": "gla", "num_heads": 4, "num_kv_heads": 2} | CONV,
    "gla_clamped": {
        "model_type": "gla", "num_heads": 2, "clamp_min": -0.05, "use_output_gate": False,
        "tie_word_embeddings": True, "expand_k": 1.0,
    },
    "hgrn2": {"model_type": "hgrn2", "expand_ratio": 8},
    "hgrn2_conv": {
        "model_type": "hgrn2", "expand_ratio": 16, "use_lower_bound": False,
    } | CONV,
    "hgrn": {"model_type": "hgrn"},
    "hgrn_conv": {"model_type": "hgrn"} | CONV,
}  # fmt: skip
CONFIGS = {name: COMMON | config for name, config in CONFIGS.items()}
LENGTHS = (1, 9, 61)  # in the golden files; the interpreter of fla's kernels takes at most 64


def random_weight(name, shape):
    """A weight in float32; norms are about one, matrices double an input's variance."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("norm.weight"):
        values = 1 + 0.3 * values
    elif len(shape) > 1 and "lower_bounds" not in name:
        values *= 1.5 * shape[-1] ** -0.5
    return values.astype(np.float32)


def random_tokens(length, batch=1):
    return np.random.RandomState(100 * length).randint(0, COMMON["vocab_size"], (batch, length))


def golden(name):
    """Logits `[1, length, vocabulary]` that flash-linear-attention computed, by length."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {length: file[str(length)] for length in LENGTHS}


def family_model(name, **options):
    config = CONFIGS[name] | options
    module = import_module(f"mlx_gateloop.family.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    return model.load_weights(list(model.sanitize(family_weights(model)).items())).eval()


def family_weights(model):
    return {
        name: mx.array(random_weight(name, array.shape))
        for name, array in tree_flatten(model.parameters())
    }


def old_names(weights):
    """As versions before February 2025 had them."""
    old = {name.replace("g_norm", "g_norm_swish_gate"): w for name, w in weights.items()}
    for layer in range(2):
        path = f"model.layers.{layer}.mlp"
        gate, up = (old.pop(f"{path}.{side}_proj.weight") for side in ("gate", "up"))
        old[f"{path}.gate_proj.weight"] = mx.concatenate([gate, up])
    return old


def close(got, want, tolerance=1e-5):
    """Assert that arrays agree, relative to the largest value."""
    assert error(got, as_numpy(want) if isinstance(want, mx.array) else want) <= tolerance


def standalone_copy(model):
    """The model as the file of a saved directory makes it, with the same weights."""
    standalone = sys.modules["standalone"] = ModuleType("standalone")  # dataclasses look it up
    exec(model_file(model.args), standalone.__dict__)
    copy = standalone.Model(standalone.ModelArgs.from_dict(asdict(model.args)))
    return copy.load_weights(tree_flatten(model.parameters()))


def write_checkpoint(path, name, **options):
    """A directory as transformers writes it, but for the tokenizer."""
    path.mkdir(exist_ok=True)
    weights = family_weights(family_model(name, **options))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIGS[name] | options))
    return path


def save_family_model(path, name):
    """Save a model whose answers are printable; returns it."""
    tokenizer = chat_tokenizer()
    # With the usual epsilon, the norm of an output near zero is steep, and rounding shows.
    sizes = {"hidden_size": 64, "intermediate_size": 64, "norm_eps": 1.0}
    model = family_model(name, vocab_size=len(tokenizer), **sizes)
    # the mean of the others is never the largest logit
    is_printable = (mx.arange(len(tokenizer)) > 32) & (mx.arange(len(tokenizer)) < 127)
    head = model.lm_head.weight
    model.lm_head.weight = mx.where(is_printable[:, None], head, head[33:127].mean(0))
    gl.save(model, tokenizer, path)
    return model
