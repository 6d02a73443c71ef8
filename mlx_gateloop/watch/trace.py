"""What a model remembers and forgets: the state transitions that its caches saw.

A layer of the model reports to its cache (`TimeMixing`), so recording follows the state, and
generations side by side never mix. A `Trace` holds what was reported in NumPy arrays.
"""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.ops import Transition

# The range of the decay rate -log|a| that `Trace.columns` writes in 8 bits, on a log scale:
# half-lives from 0.04 to 700,000 tokens. |a| itself in 8 bits would lose every long memory.
LOW, HIGH = 1e-6, 16.0
BLOCK = 64  # tokens
RATE, PHASE, QUERY, KEY = range(4)


class Trace:
    """Transitions, queries and keys of every layer, channel and token.

    One thread appends, any may read meanwhile. Tokens lie in blocks, which branches share.

    Args:
        layers: Layers of the model.
        channels: Channels of a layer.
    """

    def __init__(self, layers: int, channels: int) -> None:
        self.layers, self.channels, self.tokens = layers, channels, 0
        self.full = False  # a recorder had more
        self._blocks: list[np.ndarray] = []  # float32 [4, layers, BLOCK, channels]

    @property
    def bytes_per_token(self) -> int:
        return 4 * self.layers * self.channels * 4

    def append(self, columns: np.ndarray) -> None:
        """Add tokens: float32 `[4, layers, tokens, channels]`, -log|a|, phase, query and key."""
        while columns.shape[2]:
            start = self.tokens % BLOCK
            if start == 0:
                shape = (4, self.layers, BLOCK, self.channels)
                self._blocks.append(np.empty(shape, np.float32))
            part = columns[:, :, : BLOCK - start]
            self._blocks[-1][:, :, start : start + part.shape[2]] = part
            self.tokens += part.shape[2]  # last, so that a reader finds whole tokens only
            columns = columns[:, :, part.shape[2] :]

    def truncate(self, tokens: int) -> None:
        """Forget all but the first tokens."""
        blocks = self._blocks[: -(-tokens // BLOCK)]
        if tokens % BLOCK:  # a branch may go on reading this one, and we will write to it
            blocks[-1] = blocks[-1].copy()
        self._blocks, self.tokens = blocks, tokens

    def branch(self, tokens: int) -> "Trace":
        """Another trace with the same first tokens, at the cost of copying one block at most."""
        copy = Trace(self.layers, self.channels)
        copy._blocks, copy.tokens = list(self._blocks), self.tokens
        copy.truncate(tokens)
        return copy

    def magnitude(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """|a|, float32 `[tokens, channels]`."""
        return np.exp(-self._read(RATE, layer, start, stop))

    def phase(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """arg a in (-pi, pi], float32 `[tokens, channels]`."""
        return self._read(PHASE, layer, start, stop)

    def columns(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Magnitude and phase in 8 bits for a screen, uint8 `[tokens, 2, channels]`.

        0 to 255 are log(-log|a|) from log(LOW) to log(HIGH), and the phase from -pi to pi.
        """
        stop = self.tokens if stop is None else stop
        rate = np.clip(self._read(RATE, layer, start, stop), LOW, HIGH)
        level = np.log(rate / LOW) / np.log(HIGH / LOW)
        turns = self._read(PHASE, layer, start, stop) / (2 * np.pi) + 0.5
        return np.rint(np.stack([level, turns], 1) * 255).astype(np.uint8)

    def averages(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """|a| averaged over channels, float32 `[tokens, layers]`.

        The paper's figure is the mean of that over the layers.
        """
        stop = self.tokens if stop is None else stop
        layers = range(self.layers)
        return np.stack([self.magnitude(layer, start, stop).mean(1) for layer in layers], 1)

    def half_lives(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens after which half is forgotten, ln 2 / -log|a|, float32 `[tokens, channels]`."""
        with np.errstate(divide="ignore"):  # |a| = 1 never forgets
            return np.float32(np.log(2)) / self._read(RATE, layer, start, stop)

    def resets(
        self, layer: int | None = None, kept: float = 0.5, share: float = 0.25
    ) -> np.ndarray:
        """Tokens at which many channels forget.

        Only channels count that on average keep at least `kept`, by the geometric mean of |a|.

        Args:
            layer: One layer, or None for all.
            kept: A channel forgets at a token where |a| is below this.
            share: How many of the channels that count have to forget.

        Returns:
            Indices of tokens, ascending.
        """
        tokens = self.tokens  # read once: it may grow meanwhile
        forgets, counted = np.zeros(tokens, np.int64), 0
        for index in range(self.layers) if layer is None else [layer]:
            rate = self._read(RATE, index, 0, tokens)
            usual = rate.mean(0) <= -np.log(kept) if tokens else np.zeros(0, bool)
            forgets += (rate[:, usual] > -np.log(kept)).sum(1)
            counted += int(usual.sum())
        return np.flatnonzero(forgets >= max(1, share * counted))

    def remembered(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """How much of every token up to this one is left in the state at this one.

        by magnitude  mean over channels of |a_{m+1}| ... |a_n|
        in full       sum over channels of Re(q_n a_{m+1} ... a_n k_m), the surrogate attention

        Args:
            layer: The layer.
            token: n, below `tokens`.

        Returns:
            Both, float32 `[token + 1]`, for m = 0 to n.
        """
        rate, angle = (self._since(what, layer, token) for what in (RATE, PHASE))
        left = np.exp(-rate)
        query = self._read(QUERY, layer, token, token + 1)
        full = query * left * np.cos(angle) * self._read(KEY, layer, 0, token + 1)
        return left.mean(1).astype(np.float32), full.sum(1).astype(np.float32)

    def _since(self, what: int, layer: int, token: int) -> np.ndarray:
        """Sums over m+1..n, from the end: differences of sums from the start would lose digits."""
        values = self._read(what, layer, 1, token + 1).astype(np.float64)
        sums = values[::-1].cumsum(0)[::-1]
        return np.concatenate([sums, np.zeros((1, self.channels))])

    def save(self, path: str | os.PathLike[str], texts: Sequence[str] = ()) -> None:
        """Write an .npz file: magnitude and phase `[layers, tokens, channels]`, averages, texts.

        Args:
            path: The file.
            texts: Of the tokens.
        """
        stop, layers = self.tokens, range(self.layers)
        arrays = {
            "magnitude": np.stack([self.magnitude(layer, 0, stop) for layer in layers]),
            "phase": np.stack([self.phase(layer, 0, stop) for layer in layers]),
            "averages": self.averages(0, stop),
            "texts": np.array(list(texts), dtype=np.str_),
        }
        np.savez(path, allow_pickle=False, **arrays)

    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        start, stop, _ = slice(start, stop).indices(self.tokens)
        first = start // BLOCK
        blocks = [block[what, layer] for block in self._blocks[first : -(-stop // BLOCK)]]
        if start >= stop:
            return np.zeros((0, self.channels), np.float32)
        return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]


def total_bytes(traces: Iterable[Trace | None]) -> int:
    """Memory of traces together; what branches share counts once."""
    blocks = {id(block): block.nbytes for trace in traces if trace for block in trace._blocks}
    return sum(blocks.values())


class Recorder:
    """Collects what the layers report in each forward pass, and moves it into a trace.

    After a forward pass call `step`; its arrays are evaluated with whatever else the pass made.
    Then `take` moves the oldest pass into the trace. No MLX operation is added to the model's.

    Args:
        trace: What to append to.
        most: Tokens at which it is full; None is never.
    """

    def __init__(self, trace: Trace, most: int | None = None) -> None:
        self.trace, self.most = trace, most
        self._reports: list[tuple[mx.array, mx.array, Transition]] = []
        self._steps: deque[list[tuple[mx.array, mx.array, Transition]]] = deque()

    def report(self, query: mx.array, key: mx.array, transition: Transition) -> None:
        """What a cache's `record` is: one call a layer and forward pass, of one sequence."""
        self._reports.append((query.astype(mx.float32), key.astype(mx.float32), transition))

    def step(self) -> list[mx.array]:
        """Close a forward pass; returns its arrays, not yet evaluated."""
        self._steps.append(self._reports)
        self._reports = []
        parts = [(q, k, a.first, a.second) for q, k, a in self._steps[-1]]
        return [array for part in parts for array in part if array is not None]

    def take(self) -> None:
        """Move the oldest forward pass into the trace, unless that is full."""
        reports = self._steps.popleft()
        if self.most is not None and self.trace.tokens >= self.most:
            self.trace.full = True
            return
        shape = (4, len(reports), reports[0][0].shape[1], self.trace.channels)
        columns = np.zeros(shape, np.float32)
        for layer, (query, key, transition) in enumerate(reports):
            arrays = (transition.first, transition.second, query, key)
            for plane, array in enumerate(arrays):
                if array is not None:
                    values = np.broadcast_to(np.asarray(array), query.shape)  # one may serve a head
                    columns[plane, layer] = values.reshape(shape[2:])
        _to_rate_and_phase(columns, reports[0][2].form)  # the layers' forms are the same
        self.trace.append(columns)

    def drop(self) -> None:
        """Forget the newest forward pass: its state was given up."""
        self._steps.pop()


def recording(
    model: Any, trace: Trace | None = None, most: int | None = None
) -> tuple[list[Any], Recorder]:
    """A cache of the model whose layers report to a recorder.

    Args:
        model: A `Model`.
        trace: What to append to; None begins a new one.
        most: Tokens at which the trace is full; None is never.
    """
    recorder = Recorder(trace or Trace(len(model.layers), model.args.width), most)
    caches = model.make_cache()
    for cache in caches:
        cache.record = recorder.report
    return caches, recorder


def trace_of(model: Any, tokens: np.ndarray) -> Trace:
    """What the state transitions of a model are over one sequence, read in one forward pass.

    Args:
        model: A `Model`.
        tokens: `[length]` integers, at least one.

    Returns:
        The trace; it stays empty if the model has no state transitions.
    """
    caches, recorder = recording(model)
    model(mx.array(tokens)[None], caches)
    if arrays := recorder.step():
        mx.eval(arrays)
        recorder.take()
    return recorder.trace


def _to_rate_and_phase(columns: np.ndarray, form: str) -> None:
    """Turn what a `Transition` of this form holds into -log|a| and arg a in (-pi, pi]."""
    first, second = columns[RATE], columns[PHASE]
    if form == "cartesian":
        with np.errstate(divide="ignore"):  # a = 0
            rate, phase = -np.log(np.hypot(first, second)), np.arctan2(second, first)
    else:
        rate, phase = -first, second - 2 * np.pi * np.ceil(second / (2 * np.pi) - 0.5)
    if form == "sigmoid":  # -log of it, which neither overflows nor cancels
        rate = np.maximum(rate, 0) + np.log1p(np.exp(-np.abs(first)))
    columns[RATE], columns[PHASE] = rate, phase
