"""Values from pages and programs, checked; an error names the value in one line."""

import sys
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling


def sampling(**values: object) -> Sampling:
    """Make a `Sampling` from values of unknown types; a seed of -1 is none."""
    seed = values.pop("seed", None)
    checked: dict[str, Any] = {
        name: whole(name, value) if name == "top_k" else _number(name, value)
        for name, value in values.items()
    }
    return Sampling(**checked, seed=None if seed in (None, -1) else whole("seed", seed))


def whole(name: str, value: object) -> int:
    """Check a whole number, which JavaScript may have written as 3.0; raises InputError."""
    number = _number(name, value)
    if number != int(number):
        raise _refused(name, "a whole number", value)
    return int(number)


def text(name: str, value: object) -> str:
    """Check a text; raises InputError."""
    if not isinstance(value, str):
        raise _refused(name, "a text", value)
    return value


def flag(name: str, value: object) -> bool:
    """Check true or false; raises InputError."""
    if not isinstance(value, bool):
        raise _refused(name, "true or false", value)
    return value


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refused(name, "a number", value)
    if not abs(value) <= sys.float_info.max:  # NaN, or infinite
        raise _refused(name, "a number", value)
    return value


def _refused(name: str, expected: str, value: object) -> InputError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InputError(f"{name}: expected {expected}, got {shown}")
