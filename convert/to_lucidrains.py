"""From a model directory of ours to a state dict of gateloop-transformer."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import staged
from mlx_gateloop.io.models import load_as_stored, model_directory
from mlx_gateloop.model.lm import Model

from .output import check_target
from .reading.containers import import_torch
from .sources import LUCIDRAINS
from .sources.lucidrains import FLAG_OF

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
# Options that only the other direction has, and their flags.
ONE_WAY = ("kind", "ema", "settings", "set", "tokenizer", "quantize", "verify")


def to_lucidrains(options: Namespace) -> None:
    """Write a model directory's weights as a state dict; .safetensors needs no torch."""
    for name in ONE_WAY:
        if getattr(options, name):
            raise InputError(f"--to: does not take --{'from' if name == 'kind' else name}")
    if options.out.suffix not in SUFFIXES:
        raise InputError(f"{options.out}: expected a file name in {', '.join(SUFFIXES)}")
    directory = model_directory(options.source)
    check_target(options.out, [*directory.glob("*.safetensors")], options.force, is_file=True)
    model, _ = load_as_stored(directory)
    if not isinstance(model, Model):
        raise InputError(f"{directory}: not a gateloop model's; give a model directory of ours")
    if "quantization" in read_json(directory / "config.json"):
        raise InputError(f"{directory}: quantized weights cannot be converted; give unquantized")
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    tensors = LUCIDRAINS.state_dict(weights.__getitem__, model.args, options.dtype)
    if not options.dry_run:
        _write(tensors, options.out)
    done = "dry run: would write" if options.dry_run else "wrote"
    print(f"{done} {len(tensors)} tensors to {options.out}")
    if flag := FLAG_OF.get(model.args.ablation):
        print(f"{flag}=True is not in the weights: pass it to the constructor")


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
