"""What a conversion leaves: complete and in place, or nothing, and then the target is as it was."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.io import save
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.lm import Model, is_state_transition

from .conversion import first
from .reading.containers import one_line

BITS = (2, 3, 4, 5, 6, 8)  # mx.quantize's
GROUP_SIZES = (32, 64, 128)
LAYER_TYPE = "gateloop_layer"
# What --force may replace: the files of a model directory, those that mlx_lm adds among them.
WRITTEN = ("*.safetensors", "*.json", "*.jinja", "*.model", "README.md", ".gitattributes")


def check_target(target: Path, sources: list[Path], force: bool, is_file: bool = False) -> None:
    """Refuses a target that holds something, before any work.

    Args:
        target: The directory or file to write.
        sources: What the conversion reads.
        force: Whether an older model (or state dict) in its place may go.
        is_file: Whether the target is a state dict.

    Raises:
        InputError: It must not be replaced.
    """
    if target.is_symlink() and not target.exists():
        raise InputError(f"{target}: a link to nothing; give another output")
    for source in sources:
        if target.resolve() in (source.resolve(), *source.resolve().parents):
            raise InputError(f"{target}: holds the source, {source.name}; give another output")
    parent = next(p for p in target.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{target}: {parent} is no directory to write in; give another output")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not _is_ours(target, is_file):
        holds = "is no state dict" if is_file else "holds more than a model of ours, or none"
        raise InputError(f"{target}: exists and {holds}; give another output, or remove it")
    if not force:
        raise InputError(f"{target}: exists; give another output, or --force to replace it")


def _is_ours(target: Path, is_file: bool) -> bool:
    """Whether a target is a state dict, or a directory with a model of ours and nothing else."""
    if is_file:
        if not target.is_file():
            return False
        start = target.read_bytes()[:9] if target.stat().st_size > 9 else b""
        return start[:2] == b"PK" or start[8:] == b"{"  # a torch archive, safetensors
    try:
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    types = ("gateloop", LAYER_TYPE)
    return isinstance(config, dict) and config.get("model_type") in types and not _others(target)


def _others(directory: Path) -> list[str]:
    """What lies in a directory that this command does not write."""
    return [p.name for p in directory.iterdir() if not any(map(p.match, WRITTEN))]


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A place beside the target; what is there when the block ends takes the target's place.

    After an exception in the block it is removed, and the target is as it was before.

    Args:
        target: A directory or file.

    Returns:
        A path of the same name that does not exist yet, in a new directory.

    Raises:
        InputError: The disk is full, or the target cannot be replaced.
    """
    missing = [p for p in target.absolute().parents if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as place:
            yield Path(place) / target.name
            _replace(target, Path(place) / target.name, Path(place) / "before")
    except (OSError, RuntimeError) as error:  # MLX reports a failed write as RuntimeError
        advice = "free space there or give another output"
        raise InputError(f"{target}: {one_line(error)}; {advice}") from error
    finally:
        for directory in missing:
            with contextlib.suppress(OSError):  # not empty: the target is in there
                directory.rmdir()


def _replace(target: Path, new: Path, old: Path) -> None:
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:  # Ctrl-C too
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def write_model(model: Model, tokenizer: Any, card: str, directory: Path) -> None:
    """Writes a model directory with its card.

    Raises:
        InputError: It cannot be written.
    """
    save(model, tokenizer, directory)
    (directory / "README.md").write_text(card, encoding="utf-8")


def write_layer(layer: nn.Module, args: LayerArgs, card: str, directory: Path) -> None:
    """Writes a directory with a layer's arguments and weights: nothing that mlx_lm could load."""
    directory.mkdir()
    weights = dict(tree_flatten(layer.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    config = json.dumps({"model_type": LAYER_TYPE} | asdict(args), indent=2, sort_keys=True)
    (directory / "config.json").write_text(f"{config}\n", encoding="utf-8")
    (directory / "README.md").write_text(card, encoding="utf-8")


def cast(model: nn.Module, dtype: str) -> list[str]:
    """Gives all weights one dtype, in place; state transitions stay float32.

    Returns:
        The names of the weights with values that are too large for it.
    """
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    overflown = []
    for name in list(weights):
        weight = weights.pop(name)  # one after the other: there is room for one model
        if not is_state_transition(name):
            narrow = weight.astype(getattr(mx, dtype))
            if mx.any(mx.isinf(narrow) & ~mx.isinf(weight)):
                overflown.append(name)
            model.load_weights([(name, narrow)], strict=False)
    return overflown


def quantize(model: nn.Module, bits: int, group_size: int) -> list[str]:
    """Quantizes every layer that can be, in place; state transitions stay float32.

    Args:
        model: A model with float weights.
        bits: A weight's, one of `BITS`.
        group_size: Weights that share a scale, one of `GROUP_SIZES`.

    Returns:
        What was left as it is, in words.

    Raises:
        InputError: Nothing in the model can be quantized so.
    """
    left: dict[int, list[str]] = {}

    def can_be(name: str, module: nn.Module) -> bool:
        if not hasattr(module, "to_quantized"):
            return False
        width = module.weight.shape[-1]
        if width % group_size:
            left.setdefault(width, []).append(name)
        return width % group_size == 0

    nn.quantize(model, group_size=group_size, bits=bits, class_predicate=can_be)
    mx.eval(model.parameters())
    words = [
        f"{len(names)} layers of width {width} are not quantized, {width} is not divisible by "
        f"--q-group-size {group_size}: {first(names)}"
        for width, names in left.items()
    ]
    if not any(isinstance(m, nn.QuantizedLinear | nn.QuantizedEmbedding) for m in model.modules()):
        reason = words[0] if words else "it has no layers to quantize"
        raise InputError(f"-q: nothing can be quantized: {reason}")
    return words


def can_push(repository: str) -> None:
    """Asks the hub whether somebody is logged in, before the work is done.

    Raises:
        InputError: Nobody is, or there is no network.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
    except Exception as error:  # the hub's, and whatever the network raises
        advice = "log in with `hf auth login`, or leave --push out"
        raise InputError(f"--push {repository}: {one_line(error)}; {advice}") from None


def push(directory: Path, repository: str) -> str:
    """Uploads a model directory.

    Args:
        directory: What `write_model` wrote.
        repository: `USER/NAME`; made if it is missing.

    Returns:
        The address of the repository.

    Raises:
        InputError: The hub refused, or there is no network.
    """
    from huggingface_hub import HfApi

    try:
        address = HfApi().create_repo(repository, exist_ok=True)
        message = "Converted with mlx_gateloop"
        HfApi().upload_folder(repo_id=repository, folder_path=directory, commit_message=message)
    except Exception as error:  # the hub's, and whatever the network raises
        raise InputError(f"--push {repository}: {one_line(error)}; nothing was written") from None
    return str(address)
