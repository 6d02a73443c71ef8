"""Files of weights, read as mappings of `Stored` tensors without running the files' code."""

import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.lib import format as npy

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io import extras

Tree = dict[str, Any]  # its values are trees or `Stored`; files may hold anything else, too


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape is known at once, its values are read when needed."""

    shape: tuple[int, ...]
    dtype: str  # its name, such as "float32"
    load: Callable[[], mx.array]  # reads its values


def read(path: Path) -> Tree:
    if path.exists() and not path.is_file():  # a pipe may never end
        raise InputError(f"{path}: not a regular file; give a file of weights")
    try:
        tree = READERS[path.suffix](path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give a file of weights") from error
    except Exception as error:  # a damaged file can raise anything
        advice = f"it is truncated, damaged or no {path.suffix} file; get it again"
        raise InputError(f"{path}: {one_line(error)}; {advice}") from None
    if not isinstance(tree, dict):
        kind = type(tree).__name__
        raise InputError(f"{path}: holds a {kind}, not a state dict; save model.state_dict()")
    return tree


# --- safetensors

_SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _read_safetensors(path: Path) -> Tree:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="numpy")  # without types
    # MLX reads an array when it is evaluated; safetensors' own reader has no bfloat16. Arrays are
    # popped, as the mapping would keep each evaluated one alive.
    arrays: dict[str, mx.array] = {}

    def load(name: str) -> mx.array:
        if name not in arrays:
            arrays.update(mx.load(str(path)))  # type: ignore[arg-type]
        return arrays.pop(name)

    def stored(name: str) -> Stored:
        header = file.get_slice(name)
        dtype = _SAFETENSORS_DTYPES.get(header.get_dtype(), header.get_dtype())
        return Stored(tuple(header.get_shape()), dtype, lambda: load(name))

    return {name: stored(name) for name in file.keys()}  # noqa: SIM118


# --- PyTorch

SAFE_TORCH = (2, 6)  # earlier, `weights_only` could be circumvented (CVE-2025-32434)
# What training scripts save beside weights is read past: `_Skipped` stands for each.
HARMLESS = {
    "argparse": "Namespace",
    "builtins": "bool dict float frozenset int list slice str tuple",
    "datetime": "date datetime timedelta",
    "lightning.fabric.utilities.data": "AttributeDict",
    "lightning_fabric.utilities.data": "AttributeDict",
    "numpy": "dtype ndarray",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.multiarray": "_reconstruct scalar",
    "omegaconf": "base.ContainerMetadata base.Metadata dictconfig.DictConfig nodes.AnyNode",
    "pathlib": "PosixPath PurePosixPath WindowsPath _local.PosixPath _local.WindowsPath",
    "pytorch_lightning.utilities.parsing": "AttributeDict",
    "types": "SimpleNamespace",
    "typing": "Any",
}


class _Skipped:
    def __init__(self, *_: Any) -> None:
        pass  # nothing of a file is run or kept

    __setstate__ = __init__


def _read_torch(path: Path) -> Any:
    """Read tensors and plain containers of a `torch.save` file; reject all else in it."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: PyTorch's format needs {extras.advice('torch')}") from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_TORCH:
        least = ".".join(map(str, SAFE_TORCH))
        raise InputError(f"{path}: torch {torch.__version__} could run code in it; install {least}")
    is_archive = _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual pickles; errors raise
            safe: list[Any] = [(lambda *_: {}, "collections.defaultdict")]
            for module, names in HARMLESS.items():
                safe += [(_Skipped, f"{module}.{name}") for name in names.split()]
            with torch.serialization.safe_globals(safe):
                # an archive is mapped: a tensor is read when it is converted
                tree = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: {_why_rejected(str(error))}") from None
    return _tree(tree, {}) if isinstance(tree, Mapping) else tree


def _check_archive(path: Path) -> bool:
    """Return True for a zip archive, False for a legacy file; reject a zip bomb."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    with zipfile.ZipFile(path) as archive:
        # torch.save never compresses, so that files can be mapped
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            advice = "save the weights again with torch.save"
            raise InputError(f"{path}: a zip bomb or no PyTorch file: it is compressed; {advice}")
    return True


def _why_rejected(message: str) -> str:
    if (named := re.search(r"GLOBAL ([\w.]+)", message)) is None:
        reason = message.partition("WeightsUnpickler error:")[2].partition("Check the doc")[0]
        advice = "save the weights as safetensors"
        return f"unsafe pickle or a damaged file ({one_line(Exception(reason))}); {advice}"
    return (
        f"unsafe pickle: it names {named[1]}, which could run code; nothing was run. "
        "Save model.state_dict() alone, best as safetensors"
    )


def _tree(tree: Mapping[Any, Any], done: dict[int, Tree]) -> Tree:
    """Copy nested mappings with `Stored` for tensors; a pickle can hold itself."""
    import torch

    if id(tree) not in done:
        copy = done[id(tree)] = {}
        for key in filter(lambda key: isinstance(key, str), tree):
            value = tree[key]
            if isinstance(value, torch.Tensor):
                value = _stored_torch(value.detach())
            copy[key] = _tree(value, done) if isinstance(value, Mapping) else value
    return done[id(tree)]


def _stored_torch(tensor: Any) -> Stored:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        dtype = f"{tensor.layout} {dtype}".removeprefix("torch.")  # is rejected, and not loaded

    def load() -> mx.array:
        # A view with stride 0 can claim terabytes.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"its shape {tuple(tensor.shape)} exceeds its data")
        if tensor.dtype == torch.bfloat16:
            return mx.array(tensor.contiguous().view(torch.int16).numpy()).view(mx.bfloat16)
        return mx.array(tensor.contiguous().numpy())

    return Stored(tuple(tensor.shape), dtype, load)


# --- msgpack, as flax.serialization writes it

_ARRAY, _NUMBER = 1, 3  # flax's extension types: an array, a NumPy scalar


def _read_msgpack(path: Path) -> Any:
    try:
        import msgpack
    except ImportError:
        raise InputError(f"{path}: Flax's format needs {extras.advice('msgpack')}") from None

    def extension(code: int, data: bytes) -> Any:
        if code not in (_ARRAY, _NUMBER):
            return None
        shape, dtype, values = msgpack.unpackb(data, raw=True, strict_map_key=False)
        return _stored_array(tuple(shape), dtype.decode(), values)

    # mapped, as the file and its arrays would be two copies
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return msgpack.unpackb(
            data, ext_hook=extension, object_hook=_join_chunks, strict_map_key=False
        )


def _join_chunks(value: dict[Any, Any]) -> Any:
    """Join the flat pieces into which flax cuts arrays above a gigabyte."""
    if "__msgpack_chunked_array__" not in value:
        return value
    sizes, pieces = value["shape"], value["chunks"]
    shape = tuple(sizes[str(i)] for i in range(len(sizes)))
    parts = [pieces[str(i)] for i in range(len(pieces))]
    if math.prod(shape) != sum(math.prod(part.shape) for part in parts):
        raise ValueError(f"the pieces of an array of shape {shape} do not fill it")

    def load() -> mx.array:
        return mx.concatenate([part.load() for part in parts]).reshape(shape)

    return Stored(shape, parts[0].dtype, load)


def _stored_array(shape: tuple[int, ...], dtype: str, values: bytes) -> Stored:
    is_bfloat16 = dtype == "bfloat16"  # no NumPy type
    array = np.frombuffer(values, np.uint16 if is_bfloat16 else np.dtype(dtype))
    if array.size != math.prod(shape):
        raise ValueError(f"an array of shape {shape} holds {array.size} values")

    def load() -> mx.array:
        result = mx.array(array.reshape(shape))
        return result.view(mx.bfloat16) if is_bfloat16 else result

    return Stored(shape, dtype, load)


# --- Equinox: arrays in NumPy's format, one after the other, without names

_HEADERS = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}


def _read_equinox(path: Path) -> Tree:
    """Name the arrays of a file that `equinox.tree_serialise_leaves` wrote by their number."""
    found: Tree = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            shape, by_columns, dtype = _HEADERS[npy.read_magic(file)[0]](file)
            start, count = file.tell(), math.prod(shape)
            if dtype.hasobject or start + count * dtype.itemsize > size:
                raise ValueError(f"array {len(found)} is not whole")
            file.seek(start + count * dtype.itemsize)
            load = partial(_read_array, path, start, dtype, shape, "F" if by_columns else "C")
            found[str(len(found))] = Stored(shape, dtype.name, load)
    return found


def _read_array(
    path: Path, start: int, dtype: Any, shape: tuple[int, ...], order: Literal["C", "F"]
) -> mx.array:
    values = np.fromfile(path, dtype, math.prod(shape), offset=start)
    return mx.array(values.reshape(shape, order=order))


READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _read_safetensors,
    ".bin": _read_torch,
    ".ckpt": _read_torch,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".msgpack": _read_msgpack,
    ".eqx": _read_equinox,
}
