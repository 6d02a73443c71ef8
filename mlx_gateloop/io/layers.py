"""GateLoop layers of other models: a directory with their shapes and weights, by name."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.checks import check
from mlx_gateloop.io.files import write_json
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layer import GateLoop

LAYERS_TYPE = "gateloop_layers"


def load_layers(path: str | os.PathLike[str]) -> dict[str, GateLoop]:
    """Load the layers that `gateloop convert CHECKPOINT OUT --layers` wrote.

    Args:
        path: The directory OUT.

    Returns:
        The layers by their names in the checkpoint, in evaluation mode.

    Raises:
        InputError: It is no such directory, or its weights do not fit.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> args = LayerArgs(hidden_size=8, norm="none")
        >>> with TemporaryDirectory() as folder:
        ...     save_layers({"decoder.0": (args, make_layer(args))}, Path(folder) / "out")
        ...     layers = load_layers(Path(folder) / "out")
        >>> y, state = layers["decoder.0"](mx.zeros((1, 5, 8)))
        >>> y.shape
        (1, 5, 8)
    """
    directory = Path(path)
    config = read_json(directory / "config.json")
    found, shapes = config.get("model_type"), config.get("layers")
    if found != LAYERS_TYPE or not isinstance(shapes, dict):
        raise InputError(f"{directory}: model_type: expected {LAYERS_TYPE!r}, got {found!r}")
    check(directory)
    try:
        weights: Any = mx.load(str(directory / "model.safetensors"))
        layers = {name: make_layer(LayerArgs(**values)) for name, values in shapes.items()}
        for name, layer in layers.items():
            names = _parameters(name, layer)
            layer.load_weights([(key.removeprefix(f"{name}."), weights[key]) for key in names])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{directory}: cannot be loaded: {one_line(error)}") from error
    return layers


def make_layer(args: LayerArgs) -> GateLoop:
    """Make a layer of this shape, in evaluation mode."""
    options = asdict(args)
    dim, heads, _ = (options.pop(name) for name in ("hidden_size", "num_heads", "mixer"))
    layer = GateLoop(dim, heads=heads, **options)
    layer.eval()
    return layer


def save_layers(layers: Mapping[str, tuple[LayerArgs, nn.Module]], directory: Path) -> None:
    directory.mkdir()
    weights: dict[str, mx.array] = {}
    for name, (_, layer) in layers.items():
        weights |= _parameters(name, layer)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    shapes = {name: asdict(args) for name, (args, _) in layers.items()}
    write_json(directory / "config.json", {"model_type": LAYERS_TYPE, "layers": shapes})


def _parameters(name: str, layer: nn.Module) -> dict[str, mx.array]:
    """Return the parameters of a layer by their names in the file."""
    return dict(tree_flatten(layer.parameters(), name and f".{name}"))
