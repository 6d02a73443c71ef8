"""One recurrent layer of a trace and its storage."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from mlx_gateloop.watch.hooks import Report
from mlx_gateloop.watch.pyramid import Pyramid, Window, wrapped


@dataclass(frozen=True)
class Columns:
    """New tokens of one layer."""

    rate: np.ndarray  # -log|a|, float32 `[tokens, ...]`
    phase: np.ndarray | None  # arg a of the same shape; None for real transitions
    # arguments of `full_row`, `[tokens, ...]` each, at least for the last tokens
    reads: Mapping[str, np.ndarray]


@dataclass
class Layer:
    """One recurrent layer and its storage."""

    name: str  # path in the model
    kind: str  # short name of the recurrence
    # rate of each state relative to its channel's, `[channels, states]`
    scale: np.ndarray | None = None
    erases: bool = False  # the delta rule
    shape: tuple[int, ...] = ()  # shape of a token's rates
    rate: Pyramid = field(init=False)
    phase: Pyramid | None = field(init=False, default=None)
    reads: dict[str, Window] = field(init=False, default_factory=dict)

    @property
    def channels(self) -> int:
        return int(np.prod(self.shape)) if self.scale is None else self.scale.size

    def of_states(self, rates: np.ndarray) -> np.ndarray:
        """Expand rates of channels `[rows, channels]` to their states."""
        if self.scale is None:
            return rates
        return (rates[:, :, None] * self.scale).reshape(len(rates), self.scale.size)

    @property
    def stores(self) -> list[Pyramid | Window]:
        return [store for store in (self.rate, self.phase, *self.reads.values()) if store]

    def first(self, tokens: int) -> "Layer":
        copy = replace(self)
        copy.rate = self.rate.first(tokens)
        copy.phase = self.phase and self.phase.first(tokens)
        copy.reads = {name: window.first(tokens) for name, window in self.reads.items()}
        return copy


def columns_of(report: Report, window: int) -> Columns:
    """Evaluate a report; keep queries, keys and the like for the last `window` tokens."""
    transition, reads = report.transition, report.reads if window else {}
    start = max(transition.shape[1] - window, 0)
    log, *phase = (values_of(plane)[0] for plane in transition.logarithm())
    cut = {name: values_of(array[:, start:])[0] for name, array in reads.items()}
    return Columns(-log, wrapped(phase[0]) if phase else None, cut)


def values_of(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))
