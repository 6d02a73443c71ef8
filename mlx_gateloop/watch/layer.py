"""One recurrent layer of a trace, and what is kept of its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mlx_gateloop.watch.pyramid import Pyramid, Window


@dataclass(frozen=True)
class Columns:
    """New tokens of one layer."""

    rate: np.ndarray  # -log|a|, float32 `[tokens, ...]`
    phase: np.ndarray | None  # arg a of the same shape; None for real transitions
    # arguments of `full_row`, `[tokens, ...]` each, of the last tokens at least
    reads: Mapping[str, np.ndarray]


@dataclass
class Layer:
    """One recurrent layer and its storage."""

    name: str  # path in the model
    kind: str  # short name of the recurrence
    # rates of a channel's states over its own, `[channels, states]`
    scale: np.ndarray | None = None
    erases: bool = False  # the delta rule
    shape: tuple[int, ...] = ()  # of a token's rates
    rate: Pyramid = field(init=False)
    phase: Pyramid | None = field(init=False, default=None)
    reads: dict[str, Window] = field(init=False, default_factory=dict)

    @property
    def channels(self) -> int:
        return int(np.prod(self.shape)) if self.scale is None else self.scale.size

    def of_states(self, rates: np.ndarray) -> np.ndarray:
        """Spread the rates of channels `[rows, channels]` over their states."""
        if self.scale is None:
            return rates
        states: np.ndarray = rates[:, :, None] * self.scale
        return states.reshape(len(rates), self.scale.size)

    @property
    def stores(self) -> list[Pyramid | Window]:
        return [store for store in (self.rate, self.phase, *self.reads.values()) if store]

    def first(self, tokens: int) -> "Layer":
        """Copy what is kept of the first tokens."""
        copy = replace(self)
        copy.rate = self.rate.first(tokens)
        copy.phase = self.phase and self.phase.first(tokens)
        copy.reads = {name: window.first(tokens) for name, window in self.reads.items()}
        return copy
