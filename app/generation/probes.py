"""Exact questions about a run: what a word depended on, and what layers and channels expect."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import lens
from mlx_gateloop.watch.ablation import depending
from mlx_gateloop.watch.editing import channel_losses

from .engine import Engine
from .models import LoadedModel
from .run import Run, Steps
from .words import UNITS, Word, tokens_of, units_of

MAX_READ = 40_000  # tokens to read for one word; 5 s with the demo model on a busy core
MAX_SECONDS = 60  # for one question


@dataclass(eq=False)
class Probe:
    """Work whose result becomes complete in steps."""

    compute: Callable[[LoadedModel], Iterator[Any]]
    result: Any = None
    seconds: float = 0.0

    def steps(self, run: Run, loaded: LoadedModel, *_: object) -> Steps[None]:
        """Compute the result; yield after each forward pass."""
        start = time.monotonic()
        for result in self.compute(loaded):
            self.result, self.seconds = result, time.monotonic() - start
            if run.stopped:
                return
            if self.seconds > MAX_SECONDS:
                reason = f"model: needs more than {MAX_SECONDS} seconds for this"
                raise InputError(f"{reason}; choose an earlier word, or another model")
            yield


def ask_dependence(
    engine: Engine, original: Run, words: Sequence[Word], word: int
) -> tuple[Run, Probe, str, list[range]]:
    """Compute how much less likely a word is without earlier ones.

    Returns the run, its result, the kind of unit that it leaves out ("words", or larger units in a
    long text), and the word numbers of each unit.
    """
    target, before = words[word], words[:word]
    ids = _ids(original, target.stop)
    if not before:
        raise InputError("words: there is no word before this one")
    skipped = len(original.earlier)
    for name, key in UNITS.items():
        units = list(units_of(before, key))
        groups = [tokens_of(before, unit) for unit in units]
        if sum(target.stop - group.start for group in groups) <= MAX_READ:
            shifted = [range(group.start + skipped, group.stop + skipped) for group in groups]
            work = Probe(partial(_depending, ids, target.first + skipped, shifted))
            return engine.enqueue(original.model, work), work, name, units
    raise InputError("words: the text before this one is too long")


def ask_lens(engine: Engine, run: Run, token: int) -> tuple[Run, Probe]:
    """Compute what the embedding and each block expect instead of a token.

    The result has the likeliest texts with their probabilities, and from which block on the
    likeliest one is the token itself, or None.
    """
    work = Probe(partial(_expecting, _ids(run, token + 1)))
    return engine.enqueue(run.model, work), work


def ask_channels(engine: Engine, run: Run, layer: int, token: int) -> tuple[Run, Probe]:
    """Compute what a token's log probability loses without each channel of a layer, in nats."""
    assert run.trace is not None
    work = Probe(partial(_losing, _ids(run, token + 1), run.trace.names[layer]))
    return engine.enqueue(run.model, work), work


def _ids(run: Run, stop: int) -> list[int]:
    """Return the tokens of the conversation before a piece."""
    if run.state is not None:
        raise InputError("words: not known of an answer that began from a state; choose none")
    return [*run.earlier, *(piece.id for piece in run.pieces[:stop])]


def _depending(
    ids: Sequence[int], first: int, groups: Sequence[range], loaded: LoadedModel
) -> Iterator[list[float]]:
    for losses in depending(loaded.model, ids, groups, since=first - 1):
        yield losses.sum(1).tolist()


def _expecting(ids: Sequence[int], loaded: LoadedModel) -> Iterator[Any]:
    logits = lens(loaded.model, ids[:-1], since=len(ids) - 2)[:, 0]
    chances, best = np.array(mx.softmax(mx.array(logits), -1)).max(-1), logits.argmax(-1)
    texts = yield from loaded.tokenizer.call("texts", best.tolist())
    wrong = np.flatnonzero(best != ids[-1])
    appears = int(wrong.max(initial=-1)) + 1
    yield list(zip(texts, chances.tolist(), strict=True)), appears if appears < len(best) else None


def _losing(ids: Sequence[int], name: str, loaded: LoadedModel) -> Iterator[list[float]]:
    layer = loaded.instrumented.names.index(name)
    for losses in channel_losses(loaded.model, ids, layer, since=len(ids) - 2):
        yield losses[:, 0].tolist()
