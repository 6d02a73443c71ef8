"""The protocol of a source: a format of checkpoints, known by its tensors' names and shapes."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.layers import make_layer
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.lm import Model, ModelArgs

from .rules import Rule

Args = TypeVar("Args", bound=LayerArgs)
Word = TypeVar("Word", bound=str)  # a Literal of the arguments
Shapes = Mapping[str, tuple[int, ...]]
Settings = Mapping[str, Any]  # values as YAML gives them, checked by the source
Tensor = Callable[[str], mx.array]  # the tensor of this name


@dataclass(frozen=True)
class Inference(Generic[Args]):
    """A model's arguments, from a checkpoint's shapes and the user's settings."""

    args: Args
    # facts that the names and shapes imply, in words
    inferred: list[str]
    # defaults for what neither they nor a setting say
    assumed: list[str]


class Reference(Protocol):
    """The source's own model with the checkpoint's weights, in float32 or float64."""

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Map tokens `[batch, length]` to logits."""

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return the output of each block, `[batch, length, hidden]`."""


class Format(ABC, Generic[Args]):
    """The tensors of a model or a layer."""

    kind: ClassVar[str]  # as --from takes it

    @abstractmethod
    def infer(self, shapes: Shapes, settings: Settings) -> Inference[Args]:
        """Infer the model's arguments."""

    @abstractmethod
    def table(self, args: Args) -> list[Rule]:
        """List every tensor of the source and every parameter of ours, each once."""

    def build(self, args: Args) -> nn.Module:
        """Build our module with random weights, in evaluation mode."""
        return Model(args).eval() if isinstance(args, ModelArgs) else make_layer(args)

    def error(self, problem: str) -> InputError:
        """An error; its message begins with the name of the source."""
        return InputError(f"{self.kind}: {problem}")

    def matrix(self, shapes: Shapes, name: str) -> tuple[int, int]:
        if (shape := shapes.get(name)) is None:
            raise self.error(f"missing {name}")
        if len(shape) != 2:
            raise self.error(f"{name} must be a matrix, got shape {shape}")
        return shape[0], shape[1]


class Source(Format[Args]):
    """A format of checkpoints of language models."""

    settings: ClassVar[Mapping[str, str]] = {}  # that `infer` knows, with a line of help each

    @abstractmethod
    def recognises(self, shapes: Shapes) -> bool:
        """Tell by its names whether a checkpoint is of this source."""

    @abstractmethod
    def reference(self, args: Args, tensor: Tensor) -> Reference:
        """Build the source's own model; `tensor` reads the checkpoint."""

    def flag(self, settings: Settings, name: str) -> bool:
        """A setting that is true or false; false by default."""
        value = settings.get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"setting {name} must be true or false, got {value!r}")
        return value

    def choice(self, settings: Settings, name: str, *choices: Word) -> Word:
        """A setting that is one of several words; by default the first."""
        value = settings.get(name, choices[0])
        for word in choices:
            if word == value:
                return word
        raise self.error(f"setting {name} must be {' or '.join(choices)}, got {value!r}")


@contextmanager
def needing(packages: str) -> Iterator[None]:
    """Say how to get the packages that a verification imports in the block."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"--verify: needs {error.name}; `pip install {packages}`") from None


def depth(shapes: Shapes, pattern: str) -> int:
    """Count the layers: `pattern` with 0, 1, 2, ... in place of {} names a tensor."""
    before, after = pattern.split("{}")
    name_of = re.compile(rf"{re.escape(before)}([0-9]{{1,9}}){re.escape(after)}")
    numbers = {int(found[1]) for name in shapes if (found := name_of.fullmatch(name))}
    # Not the largest number: a hostile name can claim any.
    gap = next(n for n in range(len(numbers) + 1) if n not in numbers)
    if gap < len(numbers):
        raise InputError(f"missing {pattern.format(gap)}, but later layers are present")
    return gap
