"""Counterfactuals of a run: its answer without some tokens, and what a word depended on."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Counterfactual
from mlx_gateloop.watch.ablation import depending
from mlx_gateloop.watch.checks import check_model

from .decoder import Decoder, Request
from .engine import Engine
from .models import LoadedModel
from .run import Limits, Run, Steps
from .states import START, Boundary, StateCache
from .words import Word

MOST_FORGOTTEN = 8  # answers kept of a run
MOST_READ = 40_000  # tokens, to find out what a word depended on; 5 s of the demo on a busy core
MOST_SECONDS = 60  # for it; models can be large


@dataclass(frozen=True)
class Again(Request):
    """A request for a run's answer without some pieces before it, with its seed and settings."""

    original: Run = field(kw_only=True)
    left_out: tuple[int, ...] = field(kw_only=True)

    def steps(
        self, run: Run, loaded: LoadedModel, states: StateCache, limits: Limits
    ) -> Steps[None]:
        """Generate; the run keeps its first answer, and this one in `forgotten`."""
        yield from _AgainDecoder(run, loaded, self, states, limits).steps()
        if not run.stopped:
            answer = run.pieces[run.answer_begin :]
            texts = ["" if piece.special else piece.text for piece in answer]
            kept = self.original.forgotten
            if (new := Counterfactual(list(self.left_out), texts)) not in kept:
                kept.append(new)
            del kept[:-MOST_FORGOTTEN]


class _AgainDecoder(Decoder):
    """Reads the tokens that are left, which is what `watch.without` does, in the usual steps."""

    request: Again

    def _tokens(self) -> Steps[Boundary]:
        check_model(self.loaded.model)
        original, left_out = self.request.original, set(self.request.left_out)
        before = original.pieces[: original.answer_begin]
        rest = (piece.id for index, piece in enumerate(before) if index not in left_out)
        self.text, self.ids = "", [*original.earlier, *rest]
        return START
        yield


@dataclass(eq=False)
class Dependence:
    """Losses of a word's log probability without groups of earlier words."""

    ids: Sequence[int]  # the conversation's tokens up to the word
    first: int  # the word's first token
    groups: Sequence[range]  # tokens that are left out together
    # nats, one for each group; incomplete until the run is done
    losses: list[float] = field(default_factory=list)

    def steps(
        self, run: Run, loaded: LoadedModel, states: StateCache, limits: Limits
    ) -> Steps[None]:
        """Compute the losses; yield after each forward pass."""
        end = time.monotonic() + MOST_SECONDS
        for losses in depending(loaded.model, self.ids, self.groups, since=self.first - 1):
            if run.stopped:
                return
            if time.monotonic() > end:
                raise InputError(
                    f"words: this model takes more than {MOST_SECONDS} seconds to leave out all "
                    "that is before this one; choose an earlier one"
                )
            self.losses = losses.sum(1).tolist()
            yield


def answer_again(engine: Engine, original: Run, left_out: Sequence[Word]) -> Run:
    """Generate a run's answer again without some words, with the same seed and settings."""
    units = _units(left_out, UNITS["messages"])
    tokens = tuple(chain(*(_tokens(left_out, unit) for unit in units)))
    if original.sampling is None or not tokens or tokens[-1] >= original.answer_begin:
        raise InputError("words: choose words before the last answer; it is given without them")
    if not original.done:
        raise InputError("words: wait for the end of the answer")
    settings = original.sampling, original.max_tokens
    again = Again("", *settings, False, None, original=original, left_out=tokens)
    return engine.enqueue(original.model, again)


def ask_dependence(
    engine: Engine, original: Run, words: Sequence[Word], word: int
) -> tuple[Run, Dependence, str, list[range]]:
    """Compute how much less likely a word is without earlier ones.

    Returns the run of the work, its result, the unit that is left out each time ("words", or larger
    ones in a long text), and the numbers of the words in each unit.
    """
    target, before = words[word], words[:word]
    if not before:
        raise InputError("words: there is no word before this one")
    skipped = len(original.earlier)
    for name, key in UNITS.items():
        units = list(_units(before, key))
        groups = [_tokens(before, unit) for unit in units]
        if sum(target.stop - group.start for group in groups) <= MOST_READ:
            ids = [*original.earlier, *(piece.id for piece in original.pieces[: target.stop])]
            shifted = [range(group.start + skipped, group.stop + skipped) for group in groups]
            work = Dependence(ids, target.first + skipped, shifted)
            return engine.enqueue(original.model, work), work, name, units
    raise InputError("words: too long a text before this one to leave out its messages")


UNITS: dict[str, Callable[[Word], object]] = {
    "words": lambda word: word.first,
    "sentences": lambda word: word.sentence,
    "messages": lambda word: word.message,
}


def _tokens(words: Sequence[Word], unit: range) -> range:
    """The tokens of some words, and what lies between them."""
    return range(words[unit[0]].first, words[unit[-1]].stop)


def _units(words: Sequence[Word], key: Callable[[Word], object]) -> Iterator[range]:
    """Group words that follow one another; yields their numbers."""
    begin = 0
    for _, group in groupby(words, key):
        length = sum(1 for _ in group)
        yield range(begin, begin + length)
        begin += length
