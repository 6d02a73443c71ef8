"""A model that reads tokens: its caches move on, and a trace records what its layers keep."""

import time
from contextlib import nullcontext

import mlx.core as mx

from mlx_gateloop.watch import Recording

from .caches import Caches
from .models import LoadedModel
from .run import Limits, Run
from .states import Boundary

TAKE_SECONDS = 0.1  # between two moves into the trace: the page asks some 11 times a second


class Reader:
    """Forward passes of a model from a state on, which may record a trace for a run.

    An earlier run's trace is continued: the run receives the pieces that it covers.
    """

    def __init__(
        self, loaded: LoadedModel, start: Boundary, run: Run, record: bool, limits: Limits
    ) -> None:
        self.loaded, self.run, self.caches = loaded, run, Caches(loaded.model)
        if start.ids:
            self.caches.put_back(start)
        self.recording: Recording | None = None
        self._taken = time.perf_counter()
        if record:
            earlier = start.recorded()
            if earlier and earlier.trace:
                run.trace = earlier.trace.branch(start.pieces)
                run.begin = start.pieces  # first: the earlier answers are not this one's
                run.pieces += earlier.pieces[: start.pieces]
            self.recording = Recording(
                loaded.instrumented, limits.trace_bytes // 2, limits.input_tokens, run.trace
            )

    def read(self, tokens: mx.array) -> mx.array:
        """Return the logits `[1, vocabulary]` after these tokens `[length]`, not yet evaluated."""
        instrumented, recording = self.loaded.instrumented, self.recording
        with nullcontext() if recording is None else instrumented.to(recording):
            logits: mx.array = self.loaded.model(tokens.reshape(1, -1), cache=self.caches.all)
        return logits[:, -1].astype(mx.float32)

    def take(self, behind: int = 0) -> None:
        """Move forward passes into the trace, but for the newest, `behind` of them."""
        self._taken = time.perf_counter()
        if self.recording is not None:
            self.run.trace = self.recording.catch_up(behind)
            self.run.unwatched = self.recording.unwatched

    def take_now_and_then(self) -> None:
        """Do that for all but the last pass, at times: at each token it would cost more."""
        if time.perf_counter() - self._taken > TAKE_SECONDS:
            self.take(behind=1)

    def undo(self, mark: tuple[list[mx.array | None], list[int]]) -> None:
        """Take the last forward pass back; `mark` is the caches' from before it."""
        self.caches.go_back(mark)
        if self.recording is not None:
            self.recording.drop()
