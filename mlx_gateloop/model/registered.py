"""The model type as mlx-lm looks it up: this module stands for `mlx_lm.models.gateloop`.

It is imported with the package and therefore imports nothing itself. At the first use of a name it
imports the model, and registers the type with transformers, which reads config.json to load the
tokenizer and would otherwise warn of an unknown type.
"""

import sys
from typing import Any

sys.modules["mlx_lm.models.gateloop"] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    if name not in ("Model", "ModelArgs"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import AutoConfig, PretrainedConfig

    from mlx_gateloop.model import lm

    config = type("GateLoopConfig", (PretrainedConfig,), {"model_type": "gateloop"})
    AutoConfig.register("gateloop", config, exist_ok=True)
    return getattr(lm, name)
