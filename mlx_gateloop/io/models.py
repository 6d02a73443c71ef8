"""Model directories, as `mlx_lm` commands take them, saved so that a failure changes nothing."""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.checks import check
from mlx_gateloop.io.files import flush, flush_tree, write_json
from mlx_gateloop.io.model_file import MODEL_FILE, model_file
from mlx_gateloop.model.linear import can_keep_short, keep_short
from mlx_gateloop.model.lm import Model, ModelArgs, require_readable
from mlx_gateloop.model.registered import MODELS
from mlx_gateloop.tokenizer import largest_id, stop_token_ids

LOG = logging.getLogger(__name__)
SAVING = ".saving"  # the folder in a model directory where `save` writes
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
TYPES = " or ".join(map(repr, MODELS))
OUR_CODE = {"model_file": None}  # for mlx-lm: no directory's code runs
# The files that are read to load a model; none of them is code.
LOADED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def load(path_or_hub_id: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Load the model and the tokenizer of a saved directory or a Hugging Face repository.

    On a CPU with the C++ extension 8-bit and 16-bit weights of linear layers stay as they are, and
    all others become float32. Without the extension, for a model of `mlx_gateloop.family` and for
    other bits, all become float32, with a line in the log: MLX's products of such weights are some
    fifty times slower there.

    Args:
        path_or_hub_id: A directory that `save` or an `mlx_lm` command wrote, the name of an
            embedded model, such as "demo", or "owner/name".

    Returns:
        The model, in evaluation mode, and mlx-lm's tokenizer.

    Raises:
        InputError: There is no usable model.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import mlx_gateloop as gl
        >>> from mlx_gateloop.tokenizer import byte_tokenizer
        >>> tokenizer = byte_tokenizer()
        >>> model = gl.Model(gl.ModelArgs(vocab_size=len(tokenizer), hidden_size=8))
        >>> with TemporaryDirectory() as directory:
        ...     gl.save(model, tokenizer, directory)
        ...     model, tokenizer = gl.load(directory)
        >>> model.args.hidden_size
        8
    """
    source = os.fspath(path_or_hub_id)
    directory = model_directory(source)
    if not _check(directory):
        config = f"{directory}/config.json"
        raise InputError(f"{config}: model_type must be {TYPES}; others run in gateloop mlx-lm")
    model, tokenizer = _load(directory, source)
    with refusing(source, "cannot be loaded"):
        model = _usable(model, source)
        require_readable(model, largest_id(tokenizer))
    if isinstance(model, Model) and model.args.outputs > model.args.vocab_size:
        raise InputError(f"{source}: predicts tokens that it cannot read; not a language model")
    return model, tokenizer


def load_any(path_or_hub_id: str | os.PathLike[str]) -> tuple[nn.Module, Any]:
    """Load a model of any type that mlx-lm runs, and its tokenizer; ours as `load` does."""
    source = os.fspath(path_or_hub_id)
    directory = model_directory(source)
    return load(source) if _check(directory) else _load(directory, source)


def load_weights(directory: Path) -> nn.Module:
    """Load the model of a directory as `load_any` does, without its tokenizer."""
    from mlx_lm.utils import load_model as load_with_mlx_lm

    is_ours = _check(directory, with_tokenizer=False)
    with refusing(str(directory), "cannot be loaded"):
        model: nn.Module = load_with_mlx_lm(directory, model_config=OUR_CODE)[0]
        return _usable(model, str(directory)) if is_ours else model


def load_model(path: str | os.PathLike[str]) -> Model:
    """Load our model of a directory that `save` wrote, with or without a tokenizer."""
    model = load_weights(Path(path))
    if not isinstance(model, Model):
        raise InputError(f"{path}: holds a {model.model_type!r} model, not 'gateloop'")
    return model


def _check(directory: Path, with_tokenizer: bool = True) -> bool:
    """Check a directory before it is loaded; return True if its model is ours."""
    path = directory / "config.json"
    if not path.exists():
        advice = "give a directory that a training run or gl.save wrote"
        if (directory / "adapter_config.json").exists():
            advice = "adapters only; run gateloop mlx-lm generate --model BASE --adapter-path this"
        raise InputError(f"{path}: No such file or directory; {advice}")
    config = read_json(path)
    is_ours = str(config.get("model_type")) in MODELS
    if not is_ours and "model_file" in config:  # mlx-lm would run it
        raise InputError(f"{path}: model_file names code, which is not run here")
    tokenizers = ("tokenizer.json", "tokenizer.model")
    if is_ours and with_tokenizer and not any((directory / name).exists() for name in tokenizers):
        advice = "give a model of text (an experiment's runs have none)"
        raise InputError(f"{directory}: no tokenizer.json; {advice}")
    check(directory)
    return is_ours


def local(source: str) -> Path:
    """Return the path of a model here, or of the embedded model with this name."""
    embedded = Path(str(files("mlx_gateloop.app"))).resolve() / "embedded_models" / source
    is_embedded = not Path(source).exists() and (embedded / "config.json").exists()
    return embedded if is_embedded else Path(source)


def model_directory(source: str) -> Path:
    """Return a directory, or download the model, unless it is in the cache."""
    directory = local(source)
    if directory.exists():
        return directory
    if not HUB_ID.fullmatch(source):
        raise InputError(f"{source}: no such model directory; give one, or a name such as demo")
    from mlx_lm.utils import snapshot_download  # mlx-lm knows where from

    with refusing(source, "no such directory, and not loaded from the Hugging Face hub"):
        return Path(snapshot_download(source, allow_patterns=list(LOADED)))


def _load(directory: Path, source: str) -> tuple[nn.Module, Any]:
    from mlx_lm import load as load_with_mlx_lm

    with refusing(source, "cannot be loaded"):
        no_code = {"trust_remote_code": False}  # None would ask on the terminal
        model, tokenizer = load_with_mlx_lm(str(directory), no_code, OUR_CODE)
        tokenizer.decode(tokenizer.encode("a"))  # some files are read, and then of no use
        if not all(type(token) is int for token in tokenizer.eos_token_ids):
            raise InputError("eos_token_id: expected ids of tokens")
    return model, tokenizer


@contextmanager
def refusing(source: str, failure: str) -> Iterator[None]:
    """Turn every failure to load a model into an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    except BaseException as error:  # tokenizers raises nothing narrower than this and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{source}: {failure}: {one_line(error)}") from error


def _usable(model: nn.Module, source: str) -> nn.Module:
    # The keys of the random state were split for initial weights that nobody needs. A program that
    # loads many models would keep all these splits, some 0.3 MB a model.
    mx.eval(mx.random.state)
    if {m.weight.dtype for m in model.modules() if hasattr(m, "bits")} - {mx.uint32}:
        raise InputError("packed weights must be uint32; get the model again")
    if mx.default_device().type != mx.cpu:
        return model
    stored = {(getattr(m, "bits", 8), getattr(m, "mode", "affine")) for m in model.modules()}
    if not (isinstance(model, Model) and stored == {(8, "affine")} and can_keep_short()):
        return _in_float32(model, source)
    keep_short(model)
    mx.eval(model.parameters())
    return model


def _in_float32(model: nn.Module, source: str) -> nn.Module:
    from mlx_lm.utils import dequantize_model

    bits = sorted({module.bits for module in model.modules() if hasattr(module, "bits")})
    dtypes = {p.dtype for p in dict(tree_flatten(model.parameters())).values()} - {mx.float32}
    if not dtypes:
        return model
    # Before dequantizing too, because its result has the dtype of the scales.
    model.set_dtype(mx.float32)
    dequantize_model(model).set_dtype(mx.float32)
    mx.eval(model.parameters())
    names = ", ".join(sorted(str(dtype).removeprefix("mlx.core.") for dtype in dtypes))
    stored = f"{'- and '.join(map(str, bits))}-bit" if bits else names
    _warn_once(f"{source}: {stored} weights run in float32 on a CPU, where that is faster")
    return model


@cache
def _warn_once(message: str) -> None:
    LOG.warning(message)


def save(model: nn.Module, tokenizer: Any, path: str | os.PathLike[str]) -> None:
    """Write a directory that `load` and every `mlx_lm` command take.

    `gateloop.py` in it is the model in one file, on MLX and mlx-lm alone. `mlx_lm.generate
    --trust-remote-code` and the like run it; `load` never does. The dtypes are those in memory:
    what `load` made float32 on a CPU is written so.

    All files are completed in a folder `.saving` inside it before the first is moved into place,
    so a failure leaves an older model in `path` as it was. Other files in `path` stay.

    Args:
        model: The model, quantized or not: ours, or of `mlx_gateloop.family`.
        tokenizer: A transformers or mlx-lm tokenizer; None for a model of something other than
            text, which only `load_model` reads.
        path: The directory; created if missing.

    Raises:
        InputError: The model has LoRA layers, or cannot be written, for example to a full disk.

    Examples:
        See `load`.
    """
    with saving(Path(path)) as building:
        _write(model, tokenizer, building)


@contextmanager
def saving(target: Path) -> Iterator[Path]:
    """Yield a folder for the files of a directory; after the block all are moved there."""
    building = target / SAVING
    is_new = not target.exists()
    try:
        shutil.rmtree(building, ignore_errors=True)  # left by a save that was killed
        building.mkdir(parents=True)
        yield building
        _move(building, target)
    except Exception as error:
        # A failed write is a RuntimeError of MLX's, and of tokenizers' nothing narrower.
        if not isinstance(error, OSError | RuntimeError) and type(error) is not Exception:
            raise
        advice = "free space there or give another directory"
        raise InputError(f"{target}: cannot be saved: {one_line(error)}; {advice}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if is_new and target.is_dir() and not any(target.iterdir()):
            target.rmdir()


def _write(model: nn.Module, tokenizer: Any, directory: Path) -> None:
    weights = dict(tree_flatten(model.parameters()))
    if any(".lora_" in name for name in weights):
        raise InputError("the model has LoRA layers; fuse them before it is saved")
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    args = model.args
    config = config_of(args) | _quantized(model)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
        token_ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "pad_token_id")}
        token_ids["eos_token_id"] = stop_token_ids(tokenizer)  # also the end of a chat's turn
        write_json(directory / "generation_config.json", token_ids)
        config |= token_ids
        if args.model_type in MODELS:
            (directory / MODEL_FILE).write_text(model_file(args), encoding="utf-8")
            config |= {"model_file": MODEL_FILE}
    write_json(directory / "config.json", config)


def config_of(args: Any) -> dict[str, Any]:
    """The entries of config.json for a model's arguments."""
    ours = isinstance(args, ModelArgs)
    return asdict(args) | ({"num_heads": args.heads, "num_outputs": args.outputs} if ours else {})


def _quantized(model: nn.Module) -> dict[str, Any]:
    """The config entry by which mlx-lm recognizes quantized weights; it infers each layer's."""
    for module in model.modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            keys = ("group_size", "bits", "mode")
            return {"quantization": {key: getattr(module, key) for key in keys}}
    return {}


def _move(building: Path, target: Path) -> None:
    """Rename every file into place; a rename cannot run out of space."""
    new = sorted(building.iterdir())
    flush_tree(building)
    shutil.rmtree(target / "additional_chat_templates", ignore_errors=True)
    for file in new:
        file.replace(target / file.name)
    # What of an older model would be loaded together with the new files.
    stale = [*target.glob("model*.safetensors*"), *target.glob("chat_template.jinja")]
    stale += [*target.glob("special_tokens_map.json"), *target.glob("added_tokens.json")]
    for old in stale:
        if old.name not in {file.name for file in new}:
            old.unlink()
    flush(target)
