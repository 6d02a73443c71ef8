"""One forward pass for the next token of each of several runs of a model.

Runs join and leave between passes: a batch has no state of its own. What it computes for a run is
what the run alone would compute.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import mlx.core as mx

from mlx_gateloop.watch import Recording
from mlx_gateloop.watch.hooks import Call

from .caches import joined
from .reader import Reader
from .sampler import Ranked, ranked


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
        """Receive one call of a layer's recurrence."""
        for recording, row in zip(self._rows, call.rows(), strict=True):
            if recording is not None:
                recording.receive(name, row)

    def exclude(self, name: str, reason: str) -> None:
        """Exclude a layer from now on."""
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
