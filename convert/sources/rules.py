"""The rows of the sources' tables: from a source's tensor to our parameters."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Rule:
    """A row of a source's table."""

    source: str  # name in the checkpoint
    ours: tuple[str, ...]  # names of our parameters
    forward: Callable[[mx.array], list[mx.array]]  # its parts, in the order of `ours`


def split(parts: int) -> Callable[[mx.array], list[mx.array]]:
    return lambda array: list(mx.split(array, parts))


def same(source: str, ours: str) -> Rule:
    return Rule(source, (ours,), lambda array: [array])


def transposed(source: str, ours: str) -> Rule:
    return Rule(source, (ours,), lambda array: [array.T])


def linear(source: str, ours: str, bias: bool) -> list[Rule]:
    """A linear layer that is the same on both sides."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [same(f"{source}.{kind}", f"{ours}.{kind}") for kind in kinds]
