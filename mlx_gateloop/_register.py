"""Registration with mlx-lm, by an import finder for two of its modules.

`mlx_lm.models.gateloop` is `mlx_gateloop.model.lm` under a second name; `mlx_lm.quant.awq` is
mlx-lm's own module with a recipe for GateLoop added to its table.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any


def install() -> None:
    """Put a finder on `sys.meta_path`, unless the hook of an installed package has done so.

    It is the hook itself if no `.pth` file has run it (PYTHONPATH), or `MlxLmFinder` in a source
    tree that is not installed.
    """
    try:
        importlib.import_module("_mlx_gateloop_hook")
    except ImportError:
        if MlxLmFinder not in sys.meta_path:
            sys.meta_path.insert(0, MlxLmFinder)


def find_spec(
    name: str, path: Sequence[str] | None = None, target: object = None
) -> ModuleSpec | None:
    """Return the spec of `mlx_lm.models.gateloop` or `mlx_lm.quant.awq`; None for other names."""
    if name == "mlx_lm.models.gateloop":
        return spec_from_loader(name, _ModelAlias())
    if name != "mlx_lm.quant.awq":
        return None
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _WithRecipe(spec.loader)
    return spec


class MlxLmFinder:
    """The finder of a source tree that is not installed, without a BLAS bridge."""

    find_spec = staticmethod(find_spec)


class _ModelAlias(Loader):
    """A loader that gives `mlx_gateloop.model.lm` itself, so that no class exists twice."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module("mlx_gateloop.model.lm")
        _name_to_transformers()


def _name_to_transformers() -> None:
    """Register the type with transformers, which reads config.json to load the tokenizer.

    Without it every command warns of an unknown model type.
    """
    from transformers import AutoConfig, PretrainedConfig

    config = type("GateLoopConfig", (PretrainedConfig,), {"model_type": "gateloop"})
    AutoConfig.register("gateloop", config, exist_ok=True)


class _WithRecipe(Loader):
    """mlx-lm's loader of its AWQ module, which then adds our entry to the table."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # get_source, get_filename, ...
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            _add_awq_recipe(module)
        except (AttributeError, TypeError) as error:  # another mlx-lm: its other models still work
            warnings.warn(f"mlx_gateloop: no AWQ recipe for this mlx-lm: {error}", stacklevel=2)

    def get_code(self, name: str) -> CodeType:
        """Return code for `python -m`, which would run the file without exec_module."""
        return compile(f"from {name} import main\nmain()", f"<{name}>", "exec")


def _add_awq_recipe(awq: Any) -> None:
    """Add the recipe: scale the norms with all projections that read their output.

    State-transition projections are scaled too, or the norm's new scale would change them, but
    never clipped, as they are not quantized. No scale passes through GELU.
    """

    def scale_with_norm(*projections: str) -> Any:
        def applies(block: Any) -> bool:
            present = {name for name in block.time_mixing if name.endswith("_proj")}
            return _scales_norm(block) and present - {"out_proj"} == set(projections)

        return awq.ScaleConfig(
            block="time_mixing",
            prev="time_norm",
            layers=list(projections),
            kwargs=["mask"],
            use_config=applies,
        )

    awq.AWQ_MODEL_CONFIGS["gateloop"] = awq.AWQConfig(
        embed="embed_tokens",
        lm_head="lm_head",
        no_clip=["q_proj", "k_proj", "gamma_proj", "theta_proj"],
        scale_configs=[
            scale_with_norm("q_proj", "k_proj", "v_proj", *transition, *output)
            for transition in ((), ("gamma_proj",), ("gamma_proj", "theta_proj"))
            for output in ((), ("gate_proj",))
        ]
        + [
            awq.ScaleConfig(
                block="channel_mixing",
                prev="channel_norm",
                layers=["up_proj"],
                use_config=_scales_norm,
            )
        ],
    )


def _scales_norm(block: Any) -> bool:
    """Tell if a block's norms can absorb a scale: only projections read their output."""
    return not block.is_post and "weight" in block.time_norm
