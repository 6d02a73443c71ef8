"""Edits of the state: what a model would do if channels forgot, kept or held something else.

An edit replaces the operator of a layer for the time of a block, so it is exact in all modes.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import Model
from mlx_gateloop.ops import gate_loop
from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.watch.checks import Tokens, check_indices, check_predicted, checked_tokens
from mlx_gateloop.watch.instrument import Instrumented
from mlx_gateloop.watch.recurrences import EDITABLE, EditedRecurrence

ROWS = 16  # texts in a batch


@dataclass(frozen=True)
class Edit:
    """A change of some channels of a layer at some tokens.

        h_n = keep h_{n-1} + write k_n^T v_n,   or h_n = value after the token

    Args:
        layer: Index of the layer; None means all.
        channels: Channels of its width, also as a slice or an array; None means all.
        tokens: Positions in the text that the block reads, also as a mask; None means all.
        keep: Replaces a_n, but where a document begins: 0 wipes what the state held, 1 freezes it.
            None keeps a_n. A convolution reads its last inputs all the same.
        write: Factor of what the token writes; 0 drops it.
        value: The state after each of the tokens, a number or an array that broadcasts to
            `[P, channels]` (with heads `[P, channels, V]`) in the form of `gate_loop`'s state, such
            as a slice of another run's cache; later tokens read it. None leaves the state.

    Examples:
        >>> Edit(layer=0, channels=[3], tokens=[5], keep=0).write
        1.0
    """

    layer: int | None = None
    channels: Sequence[int] | np.ndarray | slice | None = None
    tokens: Sequence[int] | np.ndarray | None = None
    keep: float | None = None
    write: float = 1.0
    value: float | mx.array | None = None


@contextmanager
def edit(model: nn.Module, *edits: Edit) -> Iterator[None]:
    """Edit what a model keeps of a text that the block reads, in one or several calls.

    Afterwards the model is as before. Its caches cannot go back over what they read in the block.
    A recording of ours has the decays without the edits.

    Args:
        model: Ours with the mixer "gate_loop", one of `mlx_gateloop.family`, or a recurrent one of
            mlx-lm except Mamba-1. Theirs have the channels and layers of `Trace`; a value
            broadcasts to `[batch, heads, ...]`, and a delta rule, rwkv7's too, still erases.
        *edits: The edits; later ones act on what earlier ones left.

    Raises:
        InputError: Another model, a layer, channel or token that does not exist (of tokens, when
            the block ends), a batch of several texts, or edits of a layer inside edits of it.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> with edit(model, Edit(layer=1, tokens=[2], keep=0)):
        ...     logits = model(mx.array([[1, 2, 3]]))
    """
    with ExitStack() as undo:
        instrumented = None
        if not isinstance(model, Model):
            instrumented = Instrumented(model)
            undo.callback(instrumented.detach)
        editing = Editing(model, edits, instrumented)
        with editing.applied():
            yield
    editing.check_tokens()


class Editing:
    """The edits of one text, which may be read in several blocks; ours needs no `instrumented`."""

    def __init__(
        self, model: nn.Module, edits: Sequence[Edit], instrumented: Instrumented | None = None
    ) -> None:
        if instrumented is None or isinstance(model, Model):
            self._replace = [partial(_replaced, layer) for layer in _layers(model)]
        else:
            self._replace = [partial(instrumented.replaced, name) for name in instrumented.names]
        if not self._replace:
            raise InputError("model: it has no recurrent layer to edit")
        self._recurrences: dict[int, EditedRecurrence] = defaultdict(EditedRecurrence)
        every = range(len(self._replace))
        for name, each in ((f"edits[{number}]", each) for number, each in enumerate(edits)):
            layers = every if each.layer is None else [each.layer]
            check_indices(f"{name}.layer", layers, len(every))
            if each.tokens is not None and np.asarray(each.tokens).dtype == bool:
                each = replace(each, tokens=np.flatnonzero(each.tokens).tolist())
            check_indices(f"{name}.tokens", each.tokens, None)
            if instrumented and each.keep is not None and not 0 <= each.keep <= 1:
                raise InputError(f"{name}.keep: expected 0 to 1 for this model, got {each.keep:g}")
            for layer in layers:
                if instrumented and (inside := instrumented.recurrences[layer] - EDITABLE.keys()):
                    reason = f"computes its decays inside {inside.pop()}"
                    raise InputError(f"edits: layer {layer} {reason}, so they cannot be edited")
                self._recurrences[layer].edits.append((name, each))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Edit what the block reads, after what earlier blocks read."""
        with ExitStack() as undo:
            for layer, edited in self._recurrences.items():
                undo.enter_context(self._replace[layer](edited))
            yield

    def check_tokens(self) -> None:
        """Check that all tokens of the edits were read."""
        for edited in self._recurrences.values():
            for name, each in edited.edits:
                check_indices(f"{name}.tokens", each.tokens, edited.position)


def channels(model: nn.Module, tokens: Tokens, layer: int, *, since: int = 0) -> np.ndarray:
    """Compute what each prediction loses without one channel of a layer.

        loss[c, n] = log p(t_{n+1} | t_0 ... t_n) - log p(t_{n+1} | the same, channel c empty)

    Args:
        model: Ours, with the mixer "gate_loop".
        tokens: Integers `[tokens]`, at least two.
        layer: Index of the layer.
        since: First column of the result.

    Returns:
        Nats, float32 `[channels, tokens - 1 - since]`.

    Raises:
        InputError: Another model, or a layer or token that does not exist.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> channels(model, [1, 2, 3], 0).shape
        (8, 2)
    """
    return deque(channel_losses(model, tokens, layer, since=since), maxlen=1).pop()


def channel_losses(
    model: nn.Module, tokens: Tokens, layer: int, *, since: int = 0
) -> Iterator[np.ndarray]:
    """Yield the first rows of `channels` after each forward pass; same arguments."""
    layers = _layers(model)
    check_indices("layer", [layer], len(layers))
    ids = checked_tokens(model, tokens)
    check_predicted(model, ids)
    if len(ids) < 2:
        raise InputError("tokens: expected at least two, got one")
    check_indices("since", [since], len(ids) - 1)
    read, following = mx.array(ids[None, :-1]), mx.array(ids[None, 1 + since :])
    with evaluating(model):
        whole = cross_entropy(model(read)[:, since:], following)
    width, losses = layers[layer].args.width, np.zeros((0, following.shape[1]), np.float32)
    for first in range(0, width, ROWS):
        empty = np.arange(first, min(first + ROWS, width))
        emptied = _emptied(mx.arange(width) != mx.array(empty)[:, None])
        with evaluating(model), _replaced(layers[layer], emptied):
            logits = model(mx.repeat(read, len(empty), 0))[:, since:]
        lost = cross_entropy(logits, mx.repeat(following, len(empty), 0)) - whole
        losses = np.concatenate([losses, np.array(lost)])
        yield losses


def _emptied(kept: mx.array) -> Callable[..., Any]:
    """Return the operator without what some channels write, `kept` `[batch, width]`."""

    def operator(q: mx.array, k: mx.array, *args: Any, **options: Any) -> Any:
        writes = kept.reshape(len(k), 1, *k.shape[2:])
        return gate_loop(q, mx.where(writes, k, 0), *args, **options)

    return operator


def _layers(model: nn.Module) -> list[Any]:
    if not isinstance(model, Model) or model.args.mixer != "gate_loop":
        raise InputError("model: expected a GateLoop with the mixer gate_loop")
    return [block.time_mixing for block in model.layers]


@contextmanager
def _replaced(layer: Any, operator: Any) -> Iterator[None]:
    if layer.operator is not None:
        raise InputError("model: already being edited; give all edits to one block")
    layer.operator = operator
    try:
        yield
    finally:
        layer.operator = None
