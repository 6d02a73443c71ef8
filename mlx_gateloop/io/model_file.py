"""`gateloop.py` in a saved directory: the model in one file, on MLX and mlx-lm alone."""

import ast
from importlib.resources import files
from typing import Any

from mlx_gateloop.model.arguments import GATED
from mlx_gateloop.model.lm import ModelArgs

MODEL_FILE = "gateloop.py"
# The options that the standalone model does not have; their defaults are all it knows.
PACKAGE_ONLY = (
    "mixer", "query", "rope_theta", "mixing_size", "transition_per", "ablation",
    "input_gate", "query_activation", "value_activation", "state_activation", "sub_norm",
    "activation", "projection_bias", "rms_norm_eps",
)  # fmt: skip
NEEDS_PACKAGE = (
    'raise ImportError("this model needs its package: pip install mlx-gateloop, '
    'then gateloop mlx-lm generate --model DIR")\n'
)


def model_file(args: Any) -> str:
    """Return the standalone model, or code that raises an error if it lacks one of the options."""
    if args.model_type != ModelArgs.model_type:
        return _family_file(args.model_type)
    defaults = [(name, getattr(ModelArgs(), name)) for name in PACKAGE_ONLY]  # standalone has none
    changed = [name for name, default in defaults if getattr(args, name, default) != default]
    if changed or args.transition not in GATED:
        return NEEDS_PACKAGE
    return (files("mlx_gateloop.model") / "standalone.py").read_text(encoding="utf-8")


def _family_file(model_type: str) -> str:
    """Join the modules of a family model, without their imports of this package and of pydantic."""
    lines = []
    for name in ("family/standalone", "model/convolution", "family/layers", f"family/{model_type}"):
        source = (files("mlx_gateloop") / f"{name}.py").read_text(encoding="utf-8")
        left_out: set[int] = set()
        for node in ast.walk(ast.parse(source)):
            packages = ("mlx_gateloop", "pydantic")
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(packages):
                left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines += [t for n, t in enumerate(source.splitlines(), 1) if n not in left_out]
    return "\n".join(lines) + "\n"
