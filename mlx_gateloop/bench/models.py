"""Models of one size: ours, those of mlx-lm, and gateloop-transformer's in torch."""

import warnings
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.io.machine import cores
from mlx_gateloop.model.lm import Model, ModelArgs

VOCABULARY = 1024
WIDTH = 192


def mlx_models() -> dict[str, nn.Module]:
    """Models of about two million parameters, with a shared embedding and head."""
    from mlx_lm.models import mamba, mamba2, recurrent_gemma

    mx.random.seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH}
    ours: dict[str, Any] = {"num_hidden_layers": 4, "intermediate_size": 512, "output_gate": True}
    shared = sizes | {
        "intermediate_size": 2 * WIDTH, "num_hidden_layers": 7, "conv_kernel": 4,
        "use_bias": False, "use_conv_bias": True,
    }  # fmt: skip
    heads: dict[str, Any] = {
        "num_heads": 6,
        "head_dim": 64,
        "n_groups": 1,
        "time_step_limit": (0.0, float("inf")),
    }
    griffin: dict[str, Any] = {
        "attention_bias": False, "conv1d_width": 4, "intermediate_size": 6 * WIDTH,
        "logits_soft_cap": 30.0, "num_attention_heads": 3, "num_hidden_layers": 4,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"],
    }  # fmt: skip
    models: dict[str, nn.Module] = {
        "GateLoop (ours)": Model(ModelArgs(**sizes, **ours, tie_word_embeddings=True)),
        "mlx-lm mamba": mamba.Model(
            mamba.ModelArgs("mamba", **shared, state_size=16, time_step_rank=12)
        ),
        "mlx-lm mamba2": mamba2.Model(
            mamba2.ModelArgs(
                "mamba2", **shared, **heads, state_size=64, layer_norm_epsilon=1e-5,
                tie_word_embeddings=True, time_step_rank="auto",
            )
        ),
        "mlx-lm recurrent_gemma": recurrent_gemma.Model(
            recurrent_gemma.ModelArgs("recurrent_gemma", **sizes, **griffin)
        ),
    }  # fmt: skip
    models["mlx-lm recurrent_gemma"].pop("lm_head")  # as its loader does if the head is shared
    mx.eval([model.parameters() for model in models.values()])
    return models


def torch_model(width: int, depth: int, ff_mult: int) -> Any:
    """gateloop-transformer's language model; its embedding and head are not shared."""
    import torch
    from gateloop_transformer import Transformer

    # The package leaves torch's option use_reentrant at its default, and torch warns.
    warnings.filterwarnings("ignore", message="torch.utils.checkpoint: the use_reentrant")
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    return Transformer(dim=width, num_tokens=VOCABULARY, depth=depth, ff_mult=ff_mult)


def num_parameters(model: Any) -> int:
    """The parameters of an MLX or a torch model; shared ones count once."""
    if isinstance(model, nn.Module):
        parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
        return sum(leaf.size for leaf in parameters.values())
    return sum(parameter.numel() for parameter in model.parameters())
