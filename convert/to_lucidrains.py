"""The way back: our model directory to a source's state dict, by the source's own key table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import Model, ModelArgs

from .conversion import first
from .options import Options
from .output import check_target, staged
from .reading.containers import READERS, one_line
from .reading.find import Checkpoint, find
from .sources import SOURCES, lucidrains

SUFFIXES = tuple(suffix for suffix in READERS if suffix != ".msgpack")


def convert_back(options: Options) -> list[str]:
    """Writes a model directory's weights as the state dict of `options.to`.

    A file with the suffix .safetensors needs no torch.

    Returns:
        What was done, in lines.

    Raises:
        InputError: The model is not expressible there, or the file cannot be written.
    """
    out = options.out
    if out.suffix not in SUFFIXES:
        raise InputError(f"{out}: expected a file name in {', '.join(SUFFIXES)}")
    checkpoint = find(options.source)
    check_target(out, checkpoint.files, options.force, is_file=True)
    args = _args(checkpoint)
    _check(checkpoint, args)
    if problem := lucidrains.expressible(args):
        raise InputError(f"--to {options.to}: this model cannot be one: {problem}")
    tensors = to_source(checkpoint.tensor, args, str(options.to), options.dtype)
    if not options.dry_run:
        with staged(out) as place:
            _write(tensors, place)
    what = "dry run: would write" if options.dry_run else "wrote"
    lines = [f"{what} {len(tensors)} tensors to {out}"]
    if args.ablation != "none":
        flag = {"phase": "ablate_complex", "transition": "ablate_state_transition"}[args.ablation]
        lines.append(f"{flag}=True is not in the weights: tell the constructor")
    return lines


def _args(checkpoint: Checkpoint) -> ModelArgs:
    file = checkpoint.directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: {one_line(error)}; give a model directory") from None
    if not isinstance(config, dict) or config.get("model_type") != "gateloop":
        raise InputError(f"{file}: no gateloop model's; give a model directory of ours")
    if "quantization" in config:
        raise InputError(f"{file}: quantized weights cannot go back; give the model before that")
    return ModelArgs.from_dict(config)


def _check(checkpoint: Checkpoint, args: ModelArgs) -> None:
    if args.num_hidden_layers > len(checkpoint.shapes):  # it is built below: any number would be
        raise InputError(f"{checkpoint.origin}: holds no {args.num_hidden_layers} layers")
    ours: dict[str, Any] = dict(tree_flatten(Model(args).parameters()))
    want = {name: tuple(array.shape) for name, array in ours.items()}
    wrong = sorted(
        n for n in want.keys() | checkpoint.shapes.keys() if want.get(n) != checkpoint.shapes.get(n)
    )
    if wrong:
        raise InputError(
            f"{checkpoint.origin}: its weights are not those of its config.json: {first(wrong)}"
        )


def to_source(
    weight: Callable[[str], mx.array], args: ModelArgs, kind: str, dtype: str | None = None
) -> dict[str, mx.array]:
    """Our weights under the names and in the shapes of a source.

    State transitions, which we keep in float32, take the other weights' dtype where no bit is
    lost: they had it before.

    Args:
        weight: Gives our weight of a name.
        args: The model's.
        kind: A key of SOURCES.
        dtype: Cast to it; None keeps what is stored.
    """
    usual = weight("model.embed_tokens.weight").dtype
    result = {}
    for rule in SOURCES[kind].table(args):
        arrays = rule.backward([weight(key) for key in rule.ours])
        for key, array in zip(rule.source, arrays, strict=True):
            narrow = array.astype(getattr(mx, dtype) if dtype else usual)
            if not dtype and not mx.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
                narrow = array
            mx.eval(narrow)
            result[key] = narrow
    return result


def _write(tensors: dict[str, mx.array], path: Path) -> None:
    if path.suffix == ".safetensors":
        mx.save_safetensors(str(path), tensors, {"format": "pt"})
        return
    try:
        import torch
    except ImportError:
        advice = "`pip install torch`, or give a name in .safetensors"
        raise InputError(f"{path.name}: PyTorch's format needs torch; {advice}") from None

    def as_torch(array: mx.array) -> Any:
        if array.dtype == mx.bfloat16:
            return torch.from_numpy(np.asarray(array.view(mx.int16))).view(torch.bfloat16)
        return torch.from_numpy(np.asarray(array))

    torch.save({name: as_torch(array) for name, array in tensors.items()}, path)
