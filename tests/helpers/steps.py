"""Generators that others take turns with, taken alone."""

from collections.abc import Generator
from typing import Any


def result(steps: Generator[None, None, Any]) -> Any:
    """Take all steps; returns what the last one returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
