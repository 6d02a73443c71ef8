"""Validation of values from pages and programs; an error names the value in one line."""

import sys
from typing import Any, TypeVar

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.generate import Sampling

T = TypeVar("T", str, bool)
LARGEST = sys.float_info.max  # neither NaN nor infinity is at most this


def sampling(**values: object) -> Sampling:
    """Make a `Sampling` from values of unknown types; a seed of -1 means None."""
    seed = values.pop("seed", None)
    fields: dict[str, Any] = {
        name: integer(name, value) if name == "top_k" else _number(name, value)
        for name, value in values.items()
    }
    return Sampling(**fields, seed=None if seed in (None, -1) else integer("seed", seed))


def integer(name: str, value: object) -> int:
    """Check an integer, which JavaScript may write as 3.0; raises InputError."""
    number = _number(name, value)
    if number != int(number):
        raise _type_error(name, "an integer", value)
    return int(number)


def check_type(name: str, value: object, kind: type[T]) -> T:
    """Check that a value is a string or a boolean; raises InputError."""
    if not isinstance(value, kind):
        raise _type_error(name, {str: "a string", bool: "true or false"}[kind], value)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise _type_error(name, "a number", value)
    return value


def _type_error(name: str, expected: str, value: object) -> InputError:
    return InputError(f"{name}: expected {expected}, got {shown(value)}")
