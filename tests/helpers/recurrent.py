"""Tiny random models of mlx-lm's recurrent types, and what their recurrences do."""

import inspect
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import chat_tokenizer, tiny_model
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop import save

# Arguments of all types; each takes those that it has.
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "vocab_size": 50, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "head_dim": 8, "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_epsilon": 1e-5,
    "attention_bias": False, "use_bias": False, "use_conv_bias": True, "mlp_bias": False,
    "rope_theta": 1e4, "partial_rotary_factor": 0.5, "model_max_length": 64,
    # experts
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
    "decoder_sparse_step": 1, "shared_expert_intermediate_size": 16, "mlp_only_layers": [],
    "num_shared_experts": 1, "norm_topk_prob": True, "first_k_dense_replace": 2, "topk_group": 1,
    "n_group": 1, "routed_scaling_factor": 1.0, "moe_shared_expert_intermediate_size": 16,
    # the delta rule, and latent attention
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True,
    "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "linear_attn_config": {
        "kda_layers": [1], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    # Mamba and Mamba-2, and Jamba's other layers
    "state_size": 5, "conv_kernel": 4, "time_step_rank": 3, "time_step_limit": [0.0, 100.0],
    "mamba_n_heads": 4, "mamba_num_heads": 4, "mamba_d_head": 8, "mamba_head_dim": 8,
    "mamba_d_state": 6, "ssm_state_size": 6, "mamba_d_conv": 4, "n_groups": 2, "num_heads": 4,
    "mamba_n_groups": 2, "mamba_proj_bias": False, "mamba_d_ssm": 32, "mamba_expand": 2,
    "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
    "expert_layer_period": 2,
    # Falcon, Granite, Nemotron and PLaMo
    "mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0, 0.9, 0.8, 0.7, 0.6],
    "embedding_multiplier": 1.0, "attention_multiplier": 0.3, "logits_scaling": 1.0,
    "residual_multiplier": 1.0, "shared_intermediate_size": 16, "full_attention_idx": [],
    "hybrid_override_pattern": ["M", "*", "-", "M"], "hidden_size_per_head": 8,
    # RecurrentGemma, RWKV, Bailing and GLA
    "conv1d_width": 4, "logits_soft_cap": 30.0, "attention_window_size": 32,
    "block_types": ["recurrent", "recurrent", "attention"],
    "a_low_rank_dim": 4, "v_low_rank_dim": 4, "gate_low_rank_dim": 4, "decay_low_rank_dim": 4,
    "layer_group_size": 2, "group_norm_size": 2, "num_kv_heads": 2,
}  # fmt: skip
FOUR_HEADS = {"num_key_value_heads": 4}
OTHERS: dict[str, dict[str, Any]] = {
    "qwen3_next": {"num_hidden_layers": 4},
    "qwen3_5": {"num_hidden_layers": 4, "tie_word_embeddings": True, "num_experts": 0},
    "olmo_hybrid": {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "kimi_linear": FOUR_HEADS | {"num_experts": 0},
    "kimi_k3": FOUR_HEADS | {"num_experts": 0, "q_lora_rank": 8},
    "mamba2": {"tie_word_embeddings": True},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "recurrent_gemma": {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "bailing_moe_linear": FOUR_HEADS,
    "bailing_hybrid": FOUR_HEADS,
    "bailing_moe_v3": FOUR_HEADS | {"q_lora_rank": 8},
    "gla": {"use_short_conv": True},
    "hgrn2": {"expand_ratio": 8},
}
MODULES = {"falcon_mamba": "mamba"}


def recurrent_model(name, seed=0, **sizes):
    """A random model of this type: no weight is zero, so that every gate depends on its input."""
    module = pytest.importorskip(f"mlx_lm.models.{MODULES.get(name, name)}")  # not in older ones
    mx.random.seed(seed)
    config = {"model_type": name} | SIZES | OTHERS.get(name, {}) | sizes
    model = module.Model(module.ModelArgs.from_dict(config))
    key = iter(mx.random.split(mx.random.key(seed), 1000))

    def shifted(weight):
        if not mx.issubdtype(weight.dtype, mx.floating):
            return weight
        return weight + 0.1 * mx.random.normal(weight.shape, key=next(key)).astype(weight.dtype)

    model.update(tree_map(shifted, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def save_recurrent_model(path, name, seed=0, dtype=mx.float32, tokenizer=None, **sizes):
    """Save such a model to a directory, with a tokenizer; of bytes, for chats, if none is given."""
    tokenizer = chat_tokenizer() if tokenizer is None else tokenizer
    save(tiny_model(vocab_size=len(tokenizer)), tokenizer, path)
    model = recurrent_model(name, seed, **sizes | {"vocab_size": len(tokenizer)})
    model.set_dtype(dtype)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    (path / "config.json").write_text(json.dumps(asdict(model.args)))
    return path


# Recurrences, and the argument of each that is written into the state.
VALUES = {
    "gated_delta_update": ("v",), "ssm_update": ("hidden_states", "x"), "rnn_scan": ("x",),
    "recurrent_gla": ("v",), "gate_loop_update": ("v",), "_wkv7": ("v",), "ssm_step": ("x",),
}  # fmt: skip


class Call(NamedTuple):
    function: Callable[..., Any]
    given: dict[str, Any]
    value: str  # one of VALUES


def spy(monkeypatch, model):
    """Note what a model's recurrences are called with, in mlx-lm's own modules."""
    noted: list[Call] = []

    def note(owner, name):
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @wraps(original)
        def call(*args, **options):
            bound = signature.bind(*args, **options)
            value = next(n for n in VALUES[name] if n in bound.arguments)
            noted.append(Call(original, bound.arguments, value))
            return original(*args, **options)

        monkeypatch.setattr(owner, name, call)

    owners = {type(module) for _, module in model.named_modules()}
    modules = {cls.__module__ for owner in (*owners, type(model)) for cls in owner.__mro__[:2]}
    for owner in (*owners, *map(import_module, modules)):
        for name in VALUES:
            if hasattr(owner, name):
                note(owner, name)

    def calls(count):
        layers: dict[int, list[Call]] = {}
        for number, call in enumerate(noted):
            of = id(call.given["self"]) if "self" in call.given else number % count
            layers.setdefault(of, []).append(call)
        return list(layers.values())

    return calls


def response(calls, token):
    """The outputs of all tokens, summed over heads, if that one alone writes ones."""
    found: list[np.ndarray] = []
    state = None
    for function, given, name in calls:
        axis = 2 if function.__name__ == "recurrent_gla" else 1
        value, at = given[name], token - len(found)
        ones = mx.ones_like(value)
        if value.ndim == 2:  # one token
            only = ones * (at == 0)
        else:
            at_token = (mx.arange(value.shape[axis]) == at).astype(value.dtype)
            only = ones * at_token.reshape(-1, *[1] * (value.ndim - 1 - axis))
        given = given | {name: only}
        if found:
            given |= {next(n for n in ("state", "h0", "h") if n in given): state}
        if "D" in given:  # what goes past the state
            given["D"] = mx.zeros_like(given["D"])
        with ExitStack() as stack:
            if block := given.get("self"):
                projected = getattr(block, "x_proj", lambda x: x)(value)
                changed = {"x_proj": lambda _, of=projected: of, "D": mx.array(0.0)}
                for part in changed.keys() & block.keys():
                    stack.enter_context(mock.patch.object(block, part, changed[part]))
            y, state = function(**given)
        y = y.reshape(value.shape).astype(mx.float32)  # a head's values are all alike
        y = y[:, None] if value.ndim == 2 else y.swapaxes(1, axis)
        found += [*np.array(y[0, ..., 0] if y.ndim == 4 else y[0]).sum(-1)]
    return np.array(found)


def parts(model):
    return {path: (type(module), dict(vars(module))) for path, module in model.named_modules()}
