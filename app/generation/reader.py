"""A model that reads tokens: its state moves on, and a trace records the transitions."""

import mlx.core as mx
import numpy as np

from mlx_gateloop.model.lm import Model
from mlx_gateloop.watch import Recorder, Trace, recording_cache

from .run import Limits, Run
from .states import Boundary


class Reader:
    """Forward passes of a model from a state on.

    Args:
        model: The model.
        start: The state to go on from.
        run: Receives the trace, and the pieces that an earlier run's trace already covers.
        record: True to record a trace.
        limits: Bound the trace.
    """

    def __init__(
        self, model: Model, start: Boundary, run: Run, record: bool, limits: Limits
    ) -> None:
        self.model = model
        self.recorder: Recorder | None = None
        self._recorded: list[mx.array] = []  # of the last forward pass, not yet evaluated
        if record:
            trace = Trace(len(model.layers), model.args.width)
            most = limits.trace_bytes // 2 // trace.bytes_per_token
            earlier = start.run and start.run()
            # A trace that is half full begins again, so that there is room for this run.
            if earlier and earlier.trace and start.pieces <= min(earlier.trace.tokens, most // 2):
                trace = earlier.trace.branch(start.pieces)
                run.begin = start.pieces  # first: the earlier answers are not this one's
                run.pieces += earlier.pieces[: start.pieces]
            self.caches, self.recorder = recording_cache(model, trace, most)
            run.trace = trace
        else:
            self.caches = model.make_cache()
        self._set([mx.array(state) for state in start.states])

    def read(self, tokens: mx.array) -> mx.array:
        """Return the logits `[1, vocabulary]` after these tokens `[length]`, not yet evaluated."""
        logits: mx.array = self.model(tokens.reshape(1, -1), self.caches)[:, -1]
        self._recorded = [] if self.recorder is None else self.recorder.step()
        return logits

    def pending(self) -> list[mx.array]:
        """Return the state and the record of the last forward pass, to be evaluated."""
        return self.layers() + self._recorded

    def take(self) -> None:
        """Move the oldest forward pass that is not yet in the trace there."""
        if self.recorder is not None:
            self.recorder.take()

    def layers(self) -> list[mx.array]:
        """Return the state of every layer."""
        return [cache[0] for cache in self.caches if cache[0] is not None]

    def undo(self, layers: list[mx.array]) -> None:
        """Take the last forward pass back; `layers` are the states before it."""
        self._set(layers)
        if self.recorder is not None:
            self.recorder.drop()

    def states(self) -> tuple[np.ndarray, ...]:
        return tuple(np.array(layer) for layer in self.layers())

    def _set(self, layers: list[mx.array]) -> None:
        for cache, layer in zip(self.caches, layers, strict=False):
            cache[0] = layer
