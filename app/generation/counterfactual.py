"""Counterfactuals of a run: its answer without some tokens, or after an edit of its state."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Counterfactual, Edit
from mlx_gateloop.watch.checks import check_model
from mlx_gateloop.watch.editing import Editing

from .decoder import Decoder, Request
from .engine import Engine
from .models import LoadedModel
from .prefix_cache import PrefixState
from .reader import Reader
from .run import Run, Steps
from .words import UNITS, Word, tokens_of, units_of

MAX_COUNTERFACTUALS = 8  # per run


@dataclass(frozen=True)
class CounterfactualRequest(Request):
    """A request to answer again, with the same seed and settings, from another state.

    The model reads the text without some tokens, or with edits of its state. The edits' layers are
    those of the original's trace, their tokens those of its pieces.
    """

    original: Run = field(kw_only=True)
    left_out: tuple[int, ...] = field(kw_only=True, default=())
    edits: tuple[Edit, ...] = field(kw_only=True, default=())

    def steps(self, run: Run, loaded: LoadedModel, *shared: Any) -> Steps[None]:
        """Generate; add an answer without tokens to the original run's `counterfactuals`."""
        yield from _CounterfactualDecoder(run, loaded, self, *shared).steps()
        if self.left_out and not run.stopped:
            answer = run.pieces[run.answer_begin :]
            texts = ["" if piece.special else piece.text for piece in answer]
            kept = self.original.counterfactuals
            if (new := Counterfactual(list(self.left_out), texts)) not in kept:
                kept.append(new)
            del kept[:-MAX_COUNTERFACTUALS]


class _CounterfactualDecoder(Decoder):
    """Reads the tokens step by step, with the same result as `watch.without` or `watch.edit`."""

    request: CounterfactualRequest

    def _begin(self) -> Steps[tuple[list[int], Reader]]:
        fresh, reader = yield from super()._begin()
        if edits := self.request.edits:
            model, instrumented = self.loaded.model, self.loaded.instrumented
            reader.editing = Editing(model, [self._placed(edit) for edit in edits], instrumented)
        return fresh, reader

    def _placed(self, edit: Edit) -> Edit:
        original, names = self.request.original, self.loaded.instrumented.names
        assert original.trace is not None
        assert edit.layer is not None
        assert edit.tokens is not None
        before = len(original.earlier) - len(self.beginning.ids)
        tokens = [before + token for token in edit.tokens]
        return replace(edit, layer=names.index(original.trace.names[edit.layer]), tokens=tokens)

    def _tokens(self) -> Steps[PrefixState]:
        original, left_out = self.request.original, set(self.request.left_out)
        if left_out:
            check_model(self.loaded.model)
        before = original.pieces[: original.answer_begin]
        rest = (piece.id for index, piece in enumerate(before) if index not in left_out)
        self.text, self.ids = "", [*original.earlier, *rest]
        return self.beginning
        yield


# numbers of `answer_again`, from 1
CHANGES = {"wipe": {"keep": 0.0}, "freeze": {"keep": 1.0}, "amplify": {"write": 3.0}}


def answer_again(
    engine: Engine,
    original: Run,
    chosen: Sequence[Word],
    change: int = 0,
    layers: Sequence[int] = (),
    channels: Sequence[int] | None = None,
) -> Run:
    """Generate a run's answer again, with the same seed and settings.

    Change 0 leaves the chosen words out; others edit some layers of the trace while the model reads
    them.
    """
    units = units_of(chosen, UNITS["messages"])
    tokens = tuple(chain(*(tokens_of(chosen, unit) for unit in units)))
    if original.sampling is None or not tokens or tokens[-1] >= original.answer_begin:
        raise InputError("words: choose words before the last answer")
    if not original.done:
        raise InputError("words: wait for the end of the answer")
    edits: tuple[Edit, ...] = ()
    if change:
        values = list(CHANGES.values())[change - 1]
        edits = tuple(Edit(layer, channels, tokens, **values) for layer in layers)
    request = CounterfactualRequest(
        "", original.sampling, original.max_tokens, record=False, conversation=None,
        stop=original.stop, state=original.state, original=original,
        left_out=() if change else tokens, edits=edits,
    )  # fmt: skip
    return engine.enqueue(original.model, request)
