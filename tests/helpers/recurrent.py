"""Tiny random models of mlx-lm's recurrent types, and their recurrences in float64."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import save_tiny_model, tiny_model
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop import save

SIZES = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 50, "num_hidden_layers": 2}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT = {
    "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "head_dim": 8, "rope_theta": 1e4, "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN = SIZES | ATTENTION | LINEAR | {"num_hidden_layers": 4, "head_dim": 8}
KIMI = SIZES | LATENT | {"num_attention_heads": 4, "num_key_value_heads": 4} | {
    "linear_attn_config": {
        "kda_layers": [1], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
}  # fmt: skip
MAMBA = {
    "state_size": 5, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True,
    "time_step_rank": 3,
}  # fmt: skip
BAILING = SIZES | ATTENTION | EXPERTS | {
    "num_shared_experts": 1, "norm_topk_prob": True, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "first_k_dense_replace": 2, "layer_group_size": 2, "group_norm_size": 2, "n_group": 1,
    "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": QWEN | EXPERTS | {
        "decoder_sparse_step": 1, "shared_expert_intermediate_size": 16, "mlp_only_layers": [],
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    },
    "qwen3_5": {"text_config": QWEN | {"tie_word_embeddings": True}},
    "olmo_hybrid": QWEN | {
        "rms_norm_eps": 1e-5, "linear_allow_neg_eigval": True, "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "kimi_linear": KIMI | {"model_max_length": 64, "num_experts": 0, "moe_intermediate_size": 16},
    "mamba2": SIZES | MAMBA | {
        "num_heads": 4, "head_dim": 8, "n_groups": 2, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "time_step_limit": [0.0, 100.0],
    },
    "falcon_h1": SIZES | ATTENTION | {
        "head_dim": 8, "mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_n_heads": 4,
        "mamba_d_state": 6, "mamba_n_groups": 2, "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0, 0.9, 0.8, 0.7, 0.6],
    },
    "granitemoehybrid": SIZES | ATTENTION | {
        "attention_bias": False, "embedding_multiplier": 1.0, "attention_multiplier": 0.3,
        "rope_theta": 1e4, "logits_scaling": 1.0, "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention"],
        "rms_norm_eps": 1e-5, "shared_intermediate_size": 16, "mamba_n_heads": 4,
        "mamba_d_head": 8, "mamba_proj_bias": False, "mamba_d_state": 6, "mamba_d_conv": 4,
        "mamba_n_groups": 1, "mamba_conv_bias": True,
    },
    "nemotron_h": SIZES | ATTENTION | {
        "attention_bias": False, "mamba_num_heads": 4, "mamba_head_dim": 8, "head_dim": 8,
        "mamba_proj_bias": False, "ssm_state_size": 6, "conv_kernel": 4, "n_groups": 2,
        "mlp_bias": False, "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
    "plamo2": SIZES | ATTENTION | {
        "hidden_size_per_head": 8, "mamba_d_state": 6, "mamba_num_heads": 4,
        "attention_window_size": 64, "full_attention_idx": [],
    },
    "recurrent_gemma": SIZES | {
        "attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 30.0,
        "num_attention_heads": 4, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "attention_window_size": 32, "num_hidden_layers": 3,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": SIZES | {
        "norm_eps": 1e-5, "head_dim": 8, "a_low_rank_dim": 4, "v_low_rank_dim": 4,
        "gate_low_rank_dim": 4, "decay_low_rank_dim": 4,
    },
    "mamba": SIZES | MAMBA,
    "falcon_mamba": SIZES | MAMBA | {"use_bcdt_rms": True},
    "jamba": SIZES | ATTENTION | EXPERTS | {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
        "expert_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 5, "mamba_expand": 2,
        "rms_norm_eps": 1e-5,
    },
    "bailing_moe_linear": BAILING,
    "bailing_hybrid": BAILING | LATENT | {"routed_scaling_factor": 1.0},
    "bailing_moe_v3": BAILING | LATENT | {
        "q_lora_rank": 8, "moe_shared_expert_intermediate_size": 16,
    },
    "kimi_k3": {"text_config": KIMI | {"q_lora_rank": 8}},
}  # fmt: skip
LLAMA = SIZES | ATTENTION | {"head_dim": 8, "rms_norm_eps": 1e-5}  # attention alone
MODULES = {"falcon_mamba": "mamba"}


def recurrent_model(name: str, seed: int = 0, **sizes: Any) -> Any:
    """A random model of this type: no weight is zero, so that every gate depends on its input."""
    module = pytest.importorskip(f"mlx_lm.models.{MODULES.get(name, name)}")  # not in older ones
    mx.random.seed(seed)
    config = LLAMA if name == "llama" else CONFIGS[name]
    model = module.Model(module.ModelArgs.from_dict({"model_type": name} | config | sizes))
    key = iter(mx.random.split(mx.random.key(seed), 1000))
    floats = (mx.float32, mx.float16, mx.bfloat16)
    model.update(
        tree_map(
            lambda p: (
                p + 0.1 * mx.random.normal(p.shape, key=next(key)).astype(p.dtype)
                if p.dtype in floats
                else p
            ),
            model.parameters(),
        )
    )
    model.eval()
    mx.eval(model.parameters())
    return model


def save_recurrent_model(
    path: Path,
    name: str,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    tokenizer: Any = None,
    **sizes: Any,
) -> Path:
    """Save such a model to a directory, with a tokenizer; of bytes, for chats, if none is given."""
    if tokenizer is None:
        save_tiny_model(path, chat=True)
    else:
        save(tiny_model(vocab_size=len(tokenizer)), tokenizer, path)
    vocabulary = json.loads((path / "config.json").read_text())["vocab_size"]
    if "text_config" in CONFIGS.get(name, {}):
        sizes = {"text_config": CONFIGS[name]["text_config"] | sizes | {"vocab_size": vocabulary}}
    else:
        sizes = sizes | {"vocab_size": vocabulary}
    model = recurrent_model(name, seed, **sizes)
    model.set_dtype(dtype)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(asdict(model.args)))
    return path


@dataclass
class Call:
    """Tokens of one call: h_n = h_{n-1} A_n + v_n key_n^T, y_n = h_n query_n, for each head."""

    decay: np.ndarray  # [tokens, heads, K or 1]
    matrix: np.ndarray  # A, [tokens, heads, K, K]
    query: np.ndarray  # [tokens, heads, K]
    key: np.ndarray
    value: np.ndarray  # [tokens, heads, V]
    state: np.ndarray  # after the last, [heads, V, K]


def spy(monkeypatch: Any, model: Any) -> Callable[[int], list[list[Call]]]:
    """Note what a model's recurrences are called with, in mlx-lm's own modules.

    Returns:
        A function that takes the number of recurrent layers, and returns the calls of each.
    """
    noted: list[tuple[str, dict[str, Any], Any]] = []

    def note(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            bound = inspect.signature(original).bind(*args, **options)
            bound.apply_defaults()
            noted.append((name, bound.arguments, result))
            return result

        monkeypatch.setattr(owner, name, call)

    modules = [module for _, module in model.named_modules()]
    places = {(type(module), name) for module in modules for name in METHODS}
    for owner, name in places | {(import_module(type(model).__module__), n) for n in FUNCTIONS}:
        if hasattr(owner, name):
            note(owner, name)

    def calls(count: int) -> list[list[Call]]:
        layers: dict[int, list[Call]] = {}
        for number, (name, given, result) in enumerate(noted):
            of = id(given["self"]) if "self" in given else number % count
            layers.setdefault(of, []).append(CALLS[name](given, result))
        return list(layers.values())

    return calls


def _f(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def _diagonal(decay: np.ndarray, size: int) -> np.ndarray:
    return np.broadcast_to(decay, (*decay.shape[:2], size))[..., None] * np.eye(size)


def _repeated(array: mx.array, heads: int) -> np.ndarray:
    values = _f(array)[0]  # [tokens, groups, K]
    return np.repeat(values, heads // values.shape[1], 1)


def _delta(given: dict[str, Any], result: Any) -> Call:
    v, heads = _f(given["v"])[0], given["v"].shape[2]
    gate = _f(given["a"])[0] + _f(given["dt_bias"])
    size = np.exp(_f(given["A_log"]))
    if (bound := given.get("lower_bound")) is None:
        g = np.exp(-size * _softplus(gate))
    else:
        g = np.exp(bound / (1 + np.exp(-size * gate)))
    g = g.reshape(*g.shape[:2], -1)
    beta = (1 + given.get("allow_neg_eigval", False)) / (1 + np.exp(-_f(given["b"])[0]))
    q, k = _repeated(given["q"], heads), _repeated(given["k"], heads)
    erase = np.eye(k.shape[2]) - beta[..., None, None] * k[..., None] * k[..., None, :]
    matrix = _diagonal(g, k.shape[2]) @ erase
    return Call(g, matrix, q, beta[..., None] * k, v, _f(result[1])[0])


def _ssm(given: dict[str, Any], result: Any) -> Call:
    dt = _softplus(_f(given["dt"])[0] + _f(given["dt_bias"]))
    dt = dt.clip(*given["time_step_limit"])
    a = np.exp(-np.exp(_f(given["A_log"])) * dt)[..., None]
    x = next(given[name] for name in ("hidden_states", "x") if name in given)
    B, C = (_repeated(given[name], a.shape[1]) for name in ("B", "C"))
    matrix = _diagonal(a, B.shape[2])
    return Call(a, matrix, C, dt[..., None] * B, _f(x)[0], _f(result[1])[0])


def _scan(given: dict[str, Any], result: Any) -> Call:
    x, a = (_f(given[name])[0][..., None] for name in ("x", "a"))
    one = np.ones_like(x)
    return Call(a, a[..., None], one, one, x, _f(result[1])[0][:, None, None])


def _gla(given: dict[str, Any], result: Any) -> Call:
    q, k, v = (_f(given[name])[0].swapaxes(0, 1) for name in "qkv")
    a = np.broadcast_to(np.exp(_f(given["g"]).ravel())[:, None], (*q.shape[:2], 1))
    state = _f(result[1])[0].swapaxes(1, 2)
    return Call(a, _diagonal(a, q.shape[2]), q * given["scale"], k, v, state)


def _wkv7(given: dict[str, Any], result: Any) -> Call:
    r, w, k, v, a, b = (_f(given[name])[0] for name in "rwkvab")
    matrix = _diagonal(w, w.shape[2]) + a[..., None] * b[..., None, :]
    return Call(w, matrix, r, k, v, _f(result[1])[0])


def _mamba(given: dict[str, Any], result: Any) -> Call:
    block, x = given["self"], given["x"]
    x = x if x.ndim == 3 else x[:, None]
    rank, states = block.time_step_rank, block.ssm_state_size
    parts = mx.split(block.x_proj(x), [rank, rank + states], -1)
    if "dt_layernorm" in block:
        norms = (block.dt_layernorm, block.b_layernorm, block.c_layernorm)
        parts = [norm(part) for norm, part in zip(norms, parts, strict=True)]
    elif hasattr(block, "mixer_norm"):  # mlx-lm 0.31
        parts = [block.mixer_norm(block.mixer_norm(part)) for part in parts]
    elif block.use_bcdt_rms:
        parts = [mx.fast.rms_norm(part, None, block.args.mixer_rms_eps) for part in parts]
    delta = _softplus(_f(block.dt_proj(parts[0]))[0])[..., None]
    B, C = (np.repeat(_f(part)[0][:, None], delta.shape[1], 1) for part in parts[1:])
    a = np.exp(delta * _f(given["A"]))
    state = _f(result[1])[0][:, None]
    return Call(a, _diagonal(a, states), C, delta * B, _f(x)[0][..., None], state)


FUNCTIONS = {
    "gated_delta_update": _delta,
    "ssm_update": _ssm,
    "rnn_scan": _scan,
    "recurrent_gla": _gla,
}
METHODS = {"_wkv7": _wkv7, "ssm_step": _mamba}
CALLS = FUNCTIONS | METHODS


def parts(model):
    """Return the class and the attributes of every module by its path."""
    return {path: (type(module), dict(vars(module))) for path, module in model.named_modules()}
