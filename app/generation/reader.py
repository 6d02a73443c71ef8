"""Forward passes of a model, for one run or for several at once.

Runs join and leave between passes: a batch has no state of its own. What it computes for a run is
what the run alone would compute.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import trim_prompt_cache

from mlx_gateloop.watch import Recording
from mlx_gateloop.watch.editing import Editing
from mlx_gateloop.watch.hooks import Call

from .caches import Caches, joined
from .models import LoadedModel
from .prefix_cache import PrefixState
from .run import Limits, Run
from .sampler import Ranked, ranked

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

    def trim(self, tokens: int) -> None:
        """Undo the last tokens of the last forward pass."""
        if tokens:
            trim_prompt_cache(self.caches.all, tokens)
            if self.recording is not None:
                self.recording.drop(tokens)


@dataclass(eq=False)
class Step:
    """A run's token `[1]` to read, and what its model then expects."""

    reader: Reader
    token: mx.array
    after: Ranked | None = None  # set by `read_together`


class Recordings:
    """Passes the calls of a batch on to the recordings of its rows; None is a row without one."""

    def __init__(self, rows: Sequence[Recording | None]) -> None:
        self._rows = rows

    def receive(self, name: str, call: Call) -> None:
        for recording, row in zip(self._rows, call.rows(), strict=True):
            if recording is not None:
                recording.receive(name, row)

    def exclude(self, name: str, reason: str) -> None:
        for recording in filter(None, self._rows):
            recording.exclude(name, reason)

    @contextmanager
    def forward_pass(self, tokens: mx.array | None = None) -> Iterator[None]:
        """Enclose one forward pass over tokens `[rows, 1]`."""
        assert tokens is not None
        with ExitStack() as stack:
            for recording, row in zip(self._rows, mx.split(tokens, len(tokens)), strict=True):
                if recording is not None:
                    stack.enter_context(recording.forward_pass(row))
            yield


def read_together(steps: Sequence[Step]) -> None:
    """Read the tokens of runs of one model, without evaluating anything.

    Models of other packages, and growing caches, are read one by one.
    """
    batch = [step for step in steps if step.reader.can_join]
    if len(batch) < 2:
        batch = []
    for step in steps:
        if step not in batch:
            step.after = ranked(step.reader.read(step.token))
    if not batch:
        return
    loaded, rows = batch[0].reader.loaded, [step.reader.recording for step in batch]
    tokens = mx.concatenate([step.token for step in batch])[:, None]
    with joined([step.reader.caches for step in batch]) as cache, ExitStack() as stack:
        if any(rows):
            stack.enter_context(loaded.instrumented.to(Recordings(rows)))
        logits: mx.array = loaded.model(tokens, cache=cache)
    after = ranked(logits[:, -1].astype(mx.float32)).rows()
    for step, row in zip(batch, after, strict=True):
        step.after = row
