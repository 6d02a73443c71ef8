"""What a source offers, and what it is asked with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.arguments import LayerArgs

from .rules import Rule

Shapes = Mapping[str, tuple[int, ...]]
Tensor = Callable[[str], mx.array]  # the checkpoint's tensor of this name


@dataclass(frozen=True)
class Inference:
    """What a checkpoint and the user's settings say about a model.

    Args:
        args: Keywords of the source's ARGS, `ModelArgs(**args)`.
        inferred: Facts that the names and shapes told, for people.
        assumed: Facts that neither they nor a setting told.
    """

    args: dict[str, Any]
    inferred: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


class Reference(Protocol):
    """The source's own model with the checkpoint's weights, in float32 or wider."""

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """From tokens `[batch, length]` to logits `[batch, length, vocabulary]`.

        A source whose ARGS is not ModelArgs: from and to activations `[batch, length, hidden]`.
        """
        ...

    def hidden_states(self, tokens: np.ndarray) -> list[np.ndarray]:
        """What each block gives, `[batch, length, hidden]`."""
        ...


class Source(Protocol):
    """What every module of this package offers."""

    @property
    def KIND(self) -> str:
        """The name of the source, as --from takes it."""
        ...

    @property
    def ARGS(self) -> type[LayerArgs]:
        """ModelArgs for a language model, LayerArgs for one layer.

        A layer has no vocabulary and no tokenizer, and mlx_lm cannot load it.
        """
        ...

    @property
    def SETTINGS(self) -> Mapping[str, str]:
        """Settings that `infer` understands, and what each is."""
        ...

    def recognises(self, shapes: Shapes) -> bool:
        """Whether the checkpoint has the names by which this source is known."""
        ...

    def infer(self, shapes: Shapes, settings: Mapping[str, Any]) -> Inference:
        """The model's arguments.

        Raises:
            InputError: A variant that cannot be expressed, an unknown or impossible setting, or
                no checkpoint of this source.
        """
        ...

    def build(self, args: Any) -> nn.Module:
        """Our module, to which the names of the table belong."""
        ...

    def table(self, args: Any) -> list[Rule]:
        """Every tensor of such a checkpoint and every parameter of ours, each once."""
        ...

    def reference(self, args: Any, settings: Mapping[str, Any], tensor: Tensor) -> Reference | str:
        """The source's own model, or in one line why there is none here.

        Args:
            args: An instance of ARGS.
            settings: As `infer` took them.
            tensor: Reads the checkpoint.
        """
        ...


def check_settings(kind: str, known: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Refuses settings that a source does not know."""
    if unknown := sorted(map(str, settings.keys() - known.keys())):
        expected = ", ".join(known) or "none"
        raise InputError(f"{kind}: unknown setting {', '.join(unknown)}; expected {expected}")


def flag(kind: str, settings: Mapping[str, Any], name: str) -> bool:
    """A setting that is true or false; false where it is not given."""
    value = settings.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"{kind}: setting {name} must be true or false, got {value!r}")
    return value


def choice(
    kind: str, settings: Mapping[str, Any], name: str, choices: Mapping[str, str], default: str
) -> str:
    """Our word for a setting that is one of several words."""
    value = settings.get(name, default)
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(choices)
        raise InputError(f"{kind}: setting {name} must be {expected}, got {value!r}")
    return choices[value]


def matrix(kind: str, shapes: Shapes, name: str) -> tuple[int, int]:
    """The shape of a matrix that the checkpoint must have."""
    shape = shapes.get(name)
    if shape is None:
        raise InputError(f"{kind}: missing {name}")
    if len(shape) != 2:
        raise InputError(f"{kind}: {name} must be a matrix, got shape {shape}")
    return shape[0], shape[1]


def depth(shapes: Shapes, pattern: str) -> int:
    """How many layers there are: the name in `pattern` is there for layer {} = 0, 1, 2, ...

    Raises:
        InputError: One is missing.
    """
    before, after = pattern.split("{}")
    numbers = {
        int(middle)
        for name in shapes
        if name.startswith(before)
        and name.endswith(after)
        and (middle := name[len(before) : len(name) - len(after)]).isdecimal()
        and len(middle) < 10
    }
    # Not the largest number: a name can claim any.
    gap = next(n for n in range(len(numbers) + 1) if n not in numbers)
    if gap < len(numbers):
        raise InputError(f"weights: missing {pattern.format(gap)}, but later layers are there")
    return gap
