"""The files that weights come in: safetensors, PyTorch pickles read without running them, msgpack.

A reader gives what a file holds as nested mappings, tensors as `Stored`: shapes are known at once,
values are read when asked for.
"""

import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError

Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Args:
        shape: Its sizes.
        dtype: "float32" and so on.
        load: Reads its values.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], mx.array]


def read(path: Path) -> Tree:
    """What a file of weights holds.

    Args:
        path: A file with a suffix of `READERS`.

    Raises:
        InputError: It is unreadable, damaged or unsafe.
    """
    try:
        return READERS[path.suffix](path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give a file of weights") from error


def one_line(error: BaseException) -> str:
    """An exception's text, short enough for an error message."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 200 else f"{line[:197]}..."


# --- safetensors

_SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _read_safetensors(path: Path) -> Tree:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="numpy")
        names = file.keys()
    except SafetensorError as error:
        advice = "it is truncated or no safetensors file; fetch it again"
        raise InputError(f"{path}: {one_line(error)}; {advice}") from None

    # MLX reads an array when it is evaluated, and safetensors' own reader has no bfloat16. Popped,
    # or the mapping would keep every array that was evaluated.
    arrays: dict[str, mx.array] = {}

    def load(name: str) -> mx.array:
        if name not in arrays:
            arrays.update(mx.load(str(path)))  # type: ignore[arg-type]
        return arrays.pop(name)

    def stored(name: str) -> Stored:
        header = file.get_slice(name)
        dtype = header.get_dtype()
        return Stored(
            tuple(header.get_shape()),
            _SAFETENSORS_DTYPES.get(dtype, dtype),
            lambda: load(name),
        )

    return {name: stored(name) for name in names}


# --- PyTorch

SAFE_TORCH = (2, 6)  # before it `weights_only` could be got round (CVE-2025-32434)


def _read_torch(path: Path) -> Tree:
    """Tensors and plain containers of a `torch.save` file; whatever else it names is refused."""
    try:
        import torch
    except ImportError:
        advice = "`pip install torch`, or save the weights as safetensors"
        raise InputError(f"{path}: reading PyTorch's format needs torch; {advice}") from None

    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_TORCH:
        least = ".".join(map(str, SAFE_TORCH))
        raise InputError(f"{path}: torch {torch.__version__} could run code in it; install {least}")
    is_archive = _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles; what is wrong raises
            # an archive is mapped: a tensor is read when it is converted
            tree = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: {_why_refused(str(error))}") from None
    except Exception as error:  # a damaged pickle can raise anything
        advice = "it is truncated, damaged or no PyTorch file; fetch it again"
        raise InputError(f"{path}: cannot be read ({one_line(error)}); {advice}") from None
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: holds a {type(tree).__name__}, not a state dict")
    return _TorchTree(tree, path)


def _check_archive(path: Path) -> bool:
    """Whether the file is a zip archive; one that would unpack to more than itself is refused."""
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"PK\x03\x04":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        raise InputError(f"{path}: {one_line(error)}; it is truncated, fetch it again") from None
    # torch.save never compresses, so that files can be mapped
    compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    size = sum(member.file_size for member in members)
    if compressed or size > path.stat().st_size:
        raise InputError(
            f"{path}: a zip bomb or no PyTorch file: its archive would unpack to {size:,} bytes; "
            "save the weights again with torch.save"
        )
    return True


def _why_refused(message: str) -> str:
    named = re.search(r"GLOBAL ([\w.]+)", message)
    if named is None:
        reason = message.partition("WeightsUnpickler error:")[2].partition("Check the doc")[0]
        advice = "save the weights as safetensors"
        return f"unsafe pickle or a damaged file ({one_line(Exception(reason))}); {advice}"
    return (
        f"unsafe pickle: it names {named[1]}, which could run code; nothing was run. "
        "Save model.state_dict() alone, best as safetensors"
    )


class _TorchTree(Mapping[str, Any]):
    """A mapping out of a pickle, with `Stored` for tensors; nested ones are wrapped when asked."""

    def __init__(self, tree: Mapping[Any, Any], path: Path) -> None:
        self._tree = {key: value for key, value in tree.items() if isinstance(key, str)}
        self._path = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)

    def __getitem__(self, key: str) -> Any:
        import torch

        value = self._tree[key]
        if isinstance(value, torch.Tensor):
            return _stored_torch(value.detach(), f"{self._path}: {key}")
        return _TorchTree(value, self._path) if isinstance(value, Mapping) else value


def _stored_torch(tensor: Any, name: str) -> Stored:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return Stored(tuple(tensor.shape), f"{tensor.layout} {dtype}".removeprefix("torch."), _none)
    # A view with stride 0 makes terabytes of one number.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{name}: its shape {tuple(tensor.shape)} is larger than its data")

    def load() -> mx.array:
        if tensor.dtype == torch.bfloat16:
            bits = tensor.contiguous().view(torch.int16).numpy()
            return mx.array(bits).view(mx.bfloat16)
        return mx.array(tensor.contiguous().numpy())

    return Stored(tuple(tensor.shape), dtype, load)


def _none() -> mx.array:
    raise AssertionError("tensors of other kinds are refused by their dtype")


# --- msgpack, as flax.serialization writes it

_ARRAY, _NUMBER = 1, 3  # flax's extension types: an array, a NumPy scalar


def _read_msgpack(path: Path) -> Tree:
    try:
        import msgpack
    except ImportError:
        raise InputError(f"{path}: reading it needs msgpack; `pip install msgpack`") from None

    def extension(code: int, data: bytes) -> Any:
        if code not in (_ARRAY, _NUMBER):
            return None
        shape, dtype, values = msgpack.unpackb(data, raw=True, strict_map_key=False)
        return _stored_array(tuple(shape), dtype.decode(), values)

    try:
        # mapped: the file and its arrays would be two copies
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            tree = msgpack.unpackb(
                data, ext_hook=extension, object_hook=_join_chunks, strict_map_key=False
            )
    except OSError:
        raise
    except Exception as error:  # msgpack's own, and whatever a damaged array raises
        advice = "it is truncated, damaged or no msgpack file; fetch it again"
        raise InputError(f"{path}: {one_line(error)}; {advice}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: holds a {type(tree).__name__}, not parameters")
    return tree


def _join_chunks(value: dict[Any, Any]) -> Any:
    """flax cuts arrays above a gigabyte into flat pieces."""
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


READERS: dict[str, Callable[[Path], Tree]] = {
    ".safetensors": _read_safetensors,
    ".bin": _read_torch,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".msgpack": _read_msgpack,
}
