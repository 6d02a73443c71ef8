"""Equinox's files: arrays in NumPy's format, one after the other, without names."""

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.lib import format as npy

from mlx_gateloop.errors import InputError, one_line

from .stored import Stored

HEADERS = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}


def read_equinox(path: Path) -> dict[str, Stored]:
    """Name the arrays of a file that `equinox.tree_serialise_leaves` wrote by their number."""
    found: dict[str, Stored] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            try:
                version, _ = npy.read_magic(file)
                shape, by_columns, dtype = HEADERS[version](file)
            except (ValueError, KeyError, OverflowError) as error:
                raise _damaged(path, one_line(error)) from None
            start, count = file.tell(), math.prod(shape)
            if dtype.hasobject or start + count * dtype.itemsize > size:
                raise _damaged(path, f"array {len(found)} is not whole")
            file.seek(start + count * dtype.itemsize)
            load = partial(_values, path, start, dtype, shape, "F" if by_columns else "C")
            found[str(len(found))] = Stored(shape, dtype.name, load)
    return found


def _values(
    path: Path, start: int, dtype: Any, shape: tuple[int, ...], order: Literal["C", "F"]
) -> mx.array:
    values = np.fromfile(path, dtype, math.prod(shape), offset=start)
    return mx.array(values.reshape(shape, order=order))


def _damaged(path: Path, reason: str) -> InputError:
    advice = "it is truncated, damaged or not an Equinox file; get it again"
    return InputError(f"{path}: {reason}; {advice}")
