"""`SimpleGateLoopLayer` of PyPI's gateloop-transformer (0.2.5): a layer with real gates.

It is no language model: its directory holds a `mlx_gateloop.model.layers.GateLoopLayer`.
"""

from collections.abc import Mapping
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import GateLoopLayer

from .base import Inference, Reference, Shapes, Tensor, check_settings, flag, matrix
from .pytorch import TorchReference, load_weights
from .rules import Rule, linear, same, split

KIND = "lucidrains-simple"
ARGS = LayerArgs
SETTINGS = {"reverse": "only false: a reversed layer sees the future (false)"}
QKVA, NORM, POST_NORM = "to_qkva.0.weight", "norm.gamma", "maybe_post_ln.weight"
build = GateLoopLayer


def recognises(shapes: Shapes) -> bool:
    """Whether the one matrix is there."""
    return QKVA in shapes


def infer(shapes: Shapes, settings: Mapping[str, Any]) -> Inference:
    """The arguments; see `Source`."""
    check_settings(KIND, SETTINGS, settings)
    if flag(KIND, settings, "reverse"):
        raise InputError(f"{KIND}: reverse=True is not supported: such a layer sees the future")
    size = matrix(KIND, shapes, QKVA)[1]
    has_norm, has_post_norm = NORM in shapes, POST_NORM in shapes
    args = {
        "hidden_size": size,
        "gate": "real",
        "input_gate": "none",
        "sub_norm": has_post_norm,
        "norm": "rms" if has_norm else "none",
        "bias": False,
    }
    inferred = [f"dim {size}, prenorm={has_norm}, post_ln={has_post_norm}"]
    return Inference(args, inferred, [] if "reverse" in settings else ["reverse=False"])


def table(args: LayerArgs) -> list[Rule]:
    """The key table; see `Source`."""
    names = ("q_proj", "v_proj", "gamma_proj")
    rules = [Rule((QKVA,), tuple(f"time_mixing.{name}.weight" for name in names), split(3))]
    if args.norm == "rms":
        rules.append(same(NORM, "time_norm.weight"))
    if args.sub_norm:
        rules += linear("maybe_post_ln", "time_mixing.sub_norm", bias=True)
    return rules


def reference(args: LayerArgs, settings: Mapping[str, Any], tensor: Tensor) -> Reference | str:
    """The package's own layer; see `Source`."""
    try:
        from gateloop_transformer import SimpleGateLoopLayer
    except ImportError as error:
        return f"needs {error.name}; `pip install torch gateloop-transformer`"
    layer = SimpleGateLoopLayer(args.hidden_size, prenorm=args.norm == "rms", post_ln=args.sub_norm)
    load_weights(layer, tensor)
    return TorchReference(layer, [layer])
