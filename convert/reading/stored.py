"""A tensor in a file: its shape is known at once, its values are read when needed."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: str  # its name, such as "float32"
    load: Callable[[], mx.array]  # reads its values
