"""Errors of pydantic dataclasses in one line."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from pydantic import ValidationError

from mlx_gateloop.errors import InputError

T = TypeVar("T")


def raises_input_error(cls: type[T]) -> type[T]:
    """Make the constructor of a pydantic dataclass raise InputError."""
    validate = vars(cls)["__init__"]

    @wraps(validate)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        try:
            validate(self, *args, **values)
        except ValidationError as error:
            raise InputError(f"config: {first_problem(error, cls)}") from None

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def first_problem(error: ValidationError, cls: type) -> str:
    """Describe the first failure in one line: the dotted key, what it must be, what it is.

    Args:
        error: The failure to validate `cls`.
        cls: A dataclass, which may have others as fields.
    """
    problem = error.errors(include_url=False)[0]
    *section, name = problem["loc"] or ("",)
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "unexpected_keyword_argument":
        return f"unknown key {key}{among(str(name), _fields(cls, section))}"
    if problem["type"] == "value_error":  # from a check of our own, which names the field
        return problem["msg"].removeprefix("Value error, ")
    return f"{key} {problem['msg'].replace('Input should', 'must', 1)}, got {problem['input']!r}"


def among(word: str, allowed: Iterable[str]) -> str:
    """End an error about an unknown word with the closest allowed one and all of them."""
    allowed = list(allowed)
    close = difflib.get_close_matches(word, allowed, n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"{guess}; allowed: {', '.join(allowed)}"


def _fields(cls: Any, section: Iterable[int | str]) -> list[str]:
    for part in section:
        cls = next(field.type for field in fields(cls) if field.name == part)
    return [field.name for field in fields(cls)]
