"""From a model directory of ours to a state dict of gateloop-transformer."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.files import staged
from mlx_gateloop.model.lm import Model, ModelArgs

from .output import check_target
from .plan import first
from .reading.containers import READERS, import_torch
from .reading.find import Checkpoint, find
from .sources import LUCIDRAINS
from .sources.lucidrains import FLAG_OF

SUFFIXES = tuple(suffix for suffix in READERS if suffix != ".msgpack")
# Options that only the other direction has, and their flags.
ONE_WAY = ("kind", "ema", "settings", "set", "tokenizer", "quantize", "verify")


def to_lucidrains(options: Namespace) -> None:
    """Write a model directory's weights as a state dict; .safetensors needs no torch."""
    for name in ONE_WAY:
        if getattr(options, name):
            raise InputError(f"--to: does not take --{'from' if name == 'kind' else name}")
    if options.out.suffix not in SUFFIXES:
        raise InputError(f"{options.out}: expected a file name in {', '.join(SUFFIXES)}")
    checkpoint = find(options.source)
    check_target(options.out, checkpoint.files, options.force, is_file=True)
    args = _read_args(checkpoint)
    tensors = LUCIDRAINS.state_dict(checkpoint.tensor, args, options.dtype)
    if not options.dry_run:
        _write(tensors, options.out)
    done = "dry run: would write" if options.dry_run else "wrote"
    print(f"{done} {len(tensors)} tensors to {options.out}")
    if flag := FLAG_OF.get(args.ablation):
        print(f"{flag}=True is not in the weights: pass it to the constructor")


def _read_args(checkpoint: Checkpoint) -> ModelArgs:
    """The arguments of a model directory, after a check that its weights fit."""
    file = checkpoint.directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: {one_line(error)}; give a model directory") from None
    if not isinstance(config, dict) or config.get("model_type") != "gateloop":
        raise InputError(f"{file}: not a gateloop model's; give a model directory of ours")
    if "quantization" in config:
        raise InputError(f"{file}: quantized weights cannot be converted; give unquantized ones")
    args = ModelArgs.from_dict(config)
    shapes = checkpoint.shapes
    if args.num_hidden_layers > len(shapes):  # before a model of any size is built
        raise InputError(f"{checkpoint.origin}: holds no {args.num_hidden_layers} layers")
    model: nn.Module = Model(args)
    ours: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    expected = {name: tuple(array.shape) for name, array in ours.items()}
    names = sorted(expected.keys() | shapes.keys())
    if wrong := [name for name in names if expected.get(name) != shapes.get(name)]:
        raise InputError(f"{checkpoint.origin}: weights do not fit its config.json: {first(wrong)}")
    return args


def _write(tensors: dict[str, mx.array], path: Path) -> None:
    with staged(path) as new:
        if path.suffix == ".safetensors":
            mx.save_safetensors(str(new), tensors, {"format": "pt"})
        else:
            torch = import_torch(path)
            torch.save({name: _as_torch(array) for name, array in tensors.items()}, new)


def _as_torch(array: mx.array) -> Any:  # torch has types, but is not always installed
    import torch

    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.asarray(array.view(mx.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array))
