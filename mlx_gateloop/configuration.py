"""Values in YAML and JSON files, and what is wrong with them in one line."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from mlx_gateloop.errors import InputError, one_line, shortened, shown

T = TypeVar("T")
MAX_JSON_BYTES = 4 * 2**20  # layers of a quantized model may have an entry each in config.json


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file of `key: value` lines; an empty one has none."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a YAML file") from None
    except ValueError as error:
        raise InputError(f"{path}: not readable YAML: {one_line(error)}") from None
    if tree is not None and not isinstance(tree, dict):
        raise InputError(f"{path}: expected `key: value` lines, got {type(tree).__name__}")
    if odd := [key for key in tree or {} if not isinstance(key, str)]:
        raise InputError(f"{path}: the key {shown(odd[0])} is not a string; put it in quotes")
    return tree or {}


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML's loader, which by itself takes the last value of a key that is there twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {shown(key.value)} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def parse_yaml(text: str) -> Any:
    """Parse YAML; the message of the ValueError names the line if it is known."""
    try:
        return yaml.load(text, _UniqueKeys)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem or error.context}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except Exception as error:  # a number or a date that is none, or a value that its tag rejects
        raise ValueError(one_line(error)) from None


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a regular JSON file of at most `max_bytes` bytes that holds an object."""
    try:
        if path.stat().st_size > max_bytes:
            raise InputError(f"{path}: larger than {max_bytes >> 20} MB")
        if not path.is_file():  # reading a FIFO would not end
            raise InputError(f"{path}: not a regular file")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable JSON: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file that has a JSON object in every line; a last line without its end is left out."""
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InputError(f"{path}: line {number} is not a JSON object; remove it")
        records.append(record)
    return records


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


def first_problem(error: ValidationError, cls: Any) -> str:
    """Describe the first failure in one line: the dotted key, the expected and the given value."""
    problem = error.errors(include_url=False)[0]
    *section, name = problem["loc"] or ("",)
    key = shortened(".".join(map(str, problem["loc"])))
    if problem["type"] == "unexpected_keyword_argument":
        for part in section:
            cls = next(field.type for field in fields(cls) if field.name == part)
        allowed = [field.name for field in fields(cls)]
        return f"unknown key {key}{among(shortened(str(name)), allowed)}"
    if problem["type"] == "value_error":  # from a check of our own, which names the field
        return problem["msg"].removeprefix("Value error, ")
    expected = problem["msg"].replace("Input should", "must", 1)
    return f"{key} {expected}, got {shown(problem['input'])}"


def among(word: str, allowed: Iterable[str]) -> str:
    """Make the end of an error about an unknown word: the closest allowed word, then all."""
    allowed = list(allowed)
    close = difflib.get_close_matches(word, allowed, n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"{guess}; allowed: {', '.join(allowed)}"
