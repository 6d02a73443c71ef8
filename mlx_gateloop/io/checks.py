"""Checks of a model directory before it is loaded: kinds and sizes of files, and of the model."""

import math
from pathlib import Path

import mlx.core as mx
from safetensors import SafetensorError, safe_open

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.machine import memory_bytes
from mlx_gateloop.model.linear import can_keep_short
from mlx_gateloop.model.registered import MODELS

TEXT_BYTES = 128 * 2**20  # in a file that is read whole; large tokenizers have 35 MB
TEXT = ("*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt")
OBJECTS = ("config.json", "tokenizer_config.json")
WIDE, DEEP = 2**16, 100  # up to these a config.json costs little; the loader says what misfits
DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")  # names in others' configs
SIZES = ("hidden_size", "intermediate_size", "mixing_size", "vocab_size", "num_outputs")
PACKED = 16  # 2-bit weights in an element of 32 bits


def check(directory: Path) -> None:
    """Reject a model directory that would block its reader or fill the memory."""
    try:
        for file in sorted(directory.iterdir()):
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise InputError(f"{file}: neither a file nor a folder; remove it")
            is_text = file.is_file() and any(map(file.match, TEXT))
            if is_text and file.stat().st_size > TEXT_BYTES:
                raise InputError(f"{file}: larger than {TEXT_BYTES >> 20} MB; get the model again")
            if file.name in OBJECTS and file.exists():
                read_json(file, TEXT_BYTES)
        weights = sorted(directory.glob("model*.safetensors"))  # which mlx-lm reads
        check_memory(directory, sum(file.stat().st_size for file in weights))
        if weights:  # or the loader says what is missing
            _check_shapes(directory, [array for file in weights for array in _shapes(file)])
    except OSError as error:
        raise InputError(f"{directory}: cannot be loaded: {one_line(error)}") from error


def _check_shapes(directory: Path, arrays: list[tuple[str, list[int]]]) -> None:
    path, shapes = directory / "config.json", [shape for _, shape in arrays]
    config = read_json(path)
    inner = config.get("text_config")
    given = config | (inner if isinstance(inner, dict) else {})
    for name in DEPTHS:  # a model would be built of more layers than it has weights
        depth = given.get(name)
        if isinstance(depth, int) and depth > max(DEEP, len(shapes)):
            reason = f"{name} is {depth}, but the weights are {len(shapes)} tensors"
            raise InputError(f"{path}: {reason}; get the model again")
    if str(config.get("model_type")) not in MODELS:
        return
    largest = PACKED * max((size for shape in shapes for size in shape), default=0)
    width = max((config[n] for n in SIZES if isinstance(config.get(n), int)), default=0)
    if width > max(WIDE, largest):
        reason = f"{width} is outside the supported range, that of its weights"
        raise InputError(f"{path}: {reason}; get the model again")
    if mx.default_device().type == mx.cpu:  # there it becomes float32
        stored = config.get("quantization")
        bits, mode = map(stored.get, ("bits", "mode")) if isinstance(stored, dict) else (32, "")
        is_affine = bits == 8 and mode in (None, "affine")
        keeps = is_affine and config["model_type"] == "gateloop" and can_keep_short()
        in_one = 32 // bits if bits in (2, 3, 4, 5, 6, 8) and not keeps else 1
        sizes = (math.prod(s) * (in_one if dtype == "U32" else 1) for dtype, s in arrays)
        check_memory(directory, 4 * sum(sizes))


def check_memory(what: object, nbytes: int) -> None:
    memory = memory_bytes()
    if nbytes > memory:
        size, available = f"{nbytes / 2**30:,.1f} GB", f"{memory / 2**30:,.1f} GB"
        raise InputError(f"{what}: needs {size} of memory, this machine has {available}")


def _shapes(path: Path) -> list[tuple[str, list[int]]]:
    try:
        with safe_open(path, "numpy") as file:
            arrays = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
            found = [(array.get_dtype(), array.get_shape()) for array in arrays]
            if "C64" in dict(found):
                raise InputError(f"{path}: has complex numbers; get the model again")
            return found
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be loaded: {one_line(error)}") from error
