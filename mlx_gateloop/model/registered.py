"""Our model types as mlx-lm looks them up: modules that stand for `mlx_lm.models.gateloop` etc.

It is imported with the package, and imports a model at the first use of a name. That registers the
type with transformers, which would otherwise warn of it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

MODELS = {"gateloop": "mlx_gateloop.model.lm"}
MODELS |= {name: f"mlx_gateloop.family.{name}" for name in ("gla", "hgrn", "hgrn2", "ssd")}


class Registered(ModuleType):
    """One model type, imported when it is used."""

    def __init__(self, model_type: str) -> None:
        super().__init__(f"mlx_lm.models.{model_type}", __doc__)
        self.model_type = model_type

    def __getattr__(self, name: str) -> Any:
        if name not in ("Model", "ModelArgs"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        register(self.model_type)
        return getattr(module(self.model_type), name)


def module(model_type: str) -> Any:
    """Import the module with a type's `Model` and `ModelArgs`."""
    return import_module(MODELS[model_type])


def register(model_type: str) -> None:
    """Register a type with transformers."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:  # flash-linear-attention registers its own
        config = type("Config", (PretrainedConfig,), {"model_type": model_type})
        AutoConfig.register(model_type, config)


for model_type in MODELS:
    sys.modules[f"mlx_lm.models.{model_type}"] = Registered(model_type)
