"""Forward passes of a model, with its caches and an optional trace."""

import time
from contextlib import ExitStack

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from mlx_gateloop.watch import Recording
from mlx_gateloop.watch.editing import Editing

from .caches import Caches
from .models import LoadedModel
from .prefix_cache import PrefixState
from .run import Limits, Run

TRACE_SECONDS = 0.1  # between updates of the trace; the page gets about 8 updates a second


class Reader:
    """Runs a model from a cached state, and may record a trace for a run.

    It continues the trace of the run that made the state; `run` receives the pieces of that trace.
    """

    def __init__(
        self, loaded: LoadedModel, start: PrefixState, run: Run, record: bool, limits: Limits
    ) -> None:
        self.loaded, self.run, self.caches = loaded, run, Caches(loaded.model)
        if start.ids or start.states:
            self.caches.restore(start)
        self.recording: Recording | None = None
        self.editing: Editing | None = None  # the edits of the state during reading
        self._updated = time.perf_counter()
        if record:
            earlier = start.recorded()
            if earlier and earlier.trace:
                trace = earlier.trace.branch(start.pieces)
                run.begin = start.pieces  # set first: earlier answers do not belong to this run
                run.pieces += earlier.pieces[: start.pieces]
                run.trace = trace  # set last: a page then counts the pieces that it has
            self.recording = Recording(
                loaded.instrumented, limits.trace_bytes // 2, limits.input_tokens, run.trace
            )

    @property
    def can_join(self) -> bool:
        """True if the next token may be read in a batch."""
        return self.loaded.is_ours and self.editing is None and self.caches.can_join

    def read(self, tokens: mx.array) -> mx.array:
        """Return the unevaluated logits `[length, vocabulary]` after these tokens `[length]`."""
        instrumented, recording = self.loaded.instrumented, self.recording
        with ExitStack() as applied:
            if recording is not None:
                applied.enter_context(instrumented.to(recording))
            if self.editing is not None:
                applied.enter_context(self.editing.applied())
            logits: mx.array = self.loaded.model(tokens.reshape(1, -1), cache=self.caches.all)
        return logits[0].astype(mx.float32)

    def update_trace(self, behind: int = 0) -> None:
        """Append all but the newest `behind` forward passes to the trace."""
        self._updated = time.perf_counter()
        if self.recording is not None:
            self.run.trace = self.recording.catch_up(behind)
            self.run.unwatched = self.recording.unwatched

    def update_trace_if_due(self) -> None:
        """Append all but the last pass, at most every `TRACE_SECONDS`: cheaper than per token."""
        if time.perf_counter() - self._updated > TRACE_SECONDS:
            self.update_trace(behind=1)

    def undo(self, checkpoint: tuple[list[mx.array | None], list[int]]) -> None:
        """Undo the last forward pass; `checkpoint` is from before it."""
        self.caches.rollback(checkpoint)
        if self.recording is not None:
            self.recording.drop()

    @property
    def can_trim(self) -> bool:
        """True if `trim` may be used."""
        return bool(can_trim_prompt_cache(self.caches.all))

    def trim(self, tokens: int) -> None:
        """Undo the last tokens of the last forward pass."""
        if tokens:
            trim_prompt_cache(self.caches.all, tokens)
            if self.recording is not None:
                self.recording.drop(tokens)
