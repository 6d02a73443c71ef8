"""Counterfactuals of a run: its answer without some tokens, and what a word depends on."""

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
from .prefix_cache import START, PrefixCache, PrefixState
from .run import Limits, Run, Steps
from .words import Word

MAX_COUNTERFACTUALS = 8  # per run
MAX_READ = 40_000  # tokens to read for one word; 5 s with the demo model on a busy core
MAX_SECONDS = 60  # for one word


@dataclass(frozen=True)
class CounterfactualRequest(Request):
    """A request to answer again without some earlier tokens, with the same seed and settings."""

    original: Run = field(kw_only=True)
    left_out: tuple[int, ...] = field(kw_only=True)

    def steps(
        self, run: Run, loaded: LoadedModel, prefix_cache: PrefixCache, limits: Limits
    ) -> Steps[None]:
        """Generate; add the answer to the original run's `counterfactuals`."""
        yield from _CounterfactualDecoder(run, loaded, self, prefix_cache, limits).steps()
        if not run.stopped:
            answer = run.pieces[run.answer_begin :]
            texts = ["" if piece.special else piece.text for piece in answer]
            kept = self.original.counterfactuals
            if (new := Counterfactual(list(self.left_out), texts)) not in kept:
                kept.append(new)
            del kept[:-MAX_COUNTERFACTUALS]


class _CounterfactualDecoder(Decoder):
    """Reads the remaining tokens step by step, with the same result as `watch.without`."""

    request: CounterfactualRequest

    def _tokens(self) -> Steps[PrefixState]:
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

    ids: Sequence[int]  # tokens of the conversation up to the word
    first: int  # the word's first token
    groups: Sequence[range]  # tokens to leave out together
    # nats, one per group; incomplete until the run is done
    losses: list[float] = field(default_factory=list)

    def steps(
        self, run: Run, loaded: LoadedModel, prefix_cache: PrefixCache, limits: Limits
    ) -> Steps[None]:
        """Compute the losses; yield after each forward pass."""
        end = time.monotonic() + MAX_SECONDS
        for losses in depending(loaded.model, self.ids, self.groups, since=self.first - 1):
            if run.stopped:
                return
            if time.monotonic() > end:
                raise InputError(
                    f"words: this model needs more than {MAX_SECONDS} seconds for this word; "
                    "choose an earlier one"
                )
            self.losses = losses.sum(1).tolist()
            yield


def answer_without(engine: Engine, original: Run, left_out: Sequence[Word]) -> Run:
    """Generate a run's answer again without some words, with the same seed and settings."""
    units = _units(left_out, UNITS["messages"])
    tokens = tuple(chain(*(_tokens(left_out, unit) for unit in units)))
    if original.sampling is None or not tokens or tokens[-1] >= original.answer_begin:
        raise InputError("words: choose words before the last answer")
    if not original.done:
        raise InputError("words: wait for the end of the answer")
    settings = original.sampling, original.max_tokens
    request = CounterfactualRequest("", *settings, False, None, original=original, left_out=tokens)
    return engine.enqueue(original.model, request)


def ask_dependence(
    engine: Engine, original: Run, words: Sequence[Word], word: int
) -> tuple[Run, Dependence, str, list[range]]:
    """Compute how much less likely a word is without earlier ones.

    Returns the run, its result, the kind of unit that it leaves out ("words", or larger units in a
    long text), and the word numbers of each unit.
    """
    target, before = words[word], words[:word]
    if not before:
        raise InputError("words: there is no word before this one")
    skipped = len(original.earlier)
    for name, key in UNITS.items():
        units = list(_units(before, key))
        groups = [_tokens(before, unit) for unit in units]
        if sum(target.stop - group.start for group in groups) <= MAX_READ:
            ids = [*original.earlier, *(piece.id for piece in original.pieces[: target.stop])]
            shifted = [range(group.start + skipped, group.stop + skipped) for group in groups]
            work = Dependence(ids, target.first + skipped, shifted)
            return engine.enqueue(original.model, work), work, name, units
    raise InputError("words: the text before this one is too long")


UNITS: dict[str, Callable[[Word], object]] = {
    "words": lambda word: word.first,
    "sentences": lambda word: word.sentence,
    "messages": lambda word: word.message,
}


def _tokens(words: Sequence[Word], unit: range) -> range:
    """The tokens of some words, and those between them."""
    return range(words[unit[0]].first, words[unit[-1]].stop)


def _units(words: Sequence[Word], key: Callable[[Word], object]) -> Iterator[range]:
    """Group consecutive words; yield their numbers."""
    begin = 0
    for _, group in groupby(words, key):
        length = sum(1 for _ in group)
        yield range(begin, begin + length)
        begin += length
