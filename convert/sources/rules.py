"""Reversible maps from a source's tensors to ours; only `dropped` loses anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

Arrays = Sequence[mx.array]


@dataclass(frozen=True)
class Transform:
    """A reversible map between lists of arrays, whose shapes were checked."""

    forward: Callable[[Arrays], list[mx.array]]
    backward: Callable[[Arrays], list[mx.array]]

    def then(self, other: "Transform") -> "Transform":
        """Compose: this transform, then another."""
        return Transform(
            lambda arrays: other.forward(self.forward(arrays)),
            lambda arrays: self.backward(other.backward(arrays)),
        )


@dataclass(frozen=True)
class Rule:
    """A row of a source's table."""

    source: tuple[str, ...]  # names in the checkpoint
    ours: tuple[str, ...]  # names of our parameters
    transform: Transform  # from the source's arrays to ours, in the order of the names


def _transpose(arrays: Arrays) -> list[mx.array]:
    return [array.T for array in arrays]


IDENTITY = Transform(list, list)
TRANSPOSE = Transform(_transpose, _transpose)
# Even rows, odd rows: real and imaginary parts are interleaved.
INTERLEAVE = Transform(
    lambda arrays: [arrays[0][0::2], arrays[0][1::2]],
    lambda arrays: [mx.stack(list(arrays), axis=1).reshape(-1, *arrays[0].shape[1:])],
)


def split(parts: int) -> Transform:
    return Transform(
        lambda arrays: list(mx.split(arrays[0], parts)),
        lambda arrays: [mx.concatenate(list(arrays))],
    )


def dropped(shape: tuple[int, ...]) -> Transform:
    """Leave an array of this shape out."""
    return Transform(lambda _: [], lambda _: [mx.zeros(shape)])


def negate(which: int) -> Transform:
    """Negate one of the arrays: only the sign bit changes."""

    def change(arrays: Arrays) -> list[mx.array]:
        return [-array if i == which else array for i, array in enumerate(arrays)]

    return Transform(change, change)


def same(source: str, ours: str) -> Rule:
    return Rule((source,), (ours,), IDENTITY)


def linear(source: str, ours: str, bias: bool) -> list[Rule]:
    """A linear layer that is the same on both sides."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [same(f"{source}.{kind}", f"{ours}.{kind}") for kind in kinds]
