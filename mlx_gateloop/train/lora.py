"""LoRA adapters (arXiv 2106.09685) of mlx-lm, which `mlx_lm generate --adapter-path` takes."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.models import saving

PARAMETERS: dict[str, Any] = {"scale": 20.0, "dropout": 0.0}  # mlx-lm's scale


def add_lora(model: Any, rank: int) -> None:
    """Freeze a model and add adapters to all linear layers of its blocks."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model.freeze()
    linear_to_lora_layers(model, len(model.layers), PARAMETERS | {"rank": rank})


def save_lora(model: Any, tokenizer: Any, rank: int, directory: Path) -> None:
    """Write the adapters with their configuration, and the tokenizer."""
    config = {"fine_tune_type": "lora", "num_layers": len(model.layers)}
    config |= {"lora_parameters": PARAMETERS | {"rank": rank}}
    adapters: dict[str, mx.array] = dict(tree_flatten(model.trainable_parameters()))
    with saving(directory) as building:
        mx.save_safetensors(str(building / "adapters.safetensors"), adapters)
        write_text(building / "adapter_config.json", json.dumps(config, indent=2) + "\n")
        tokenizer.save_pretrained(building)
