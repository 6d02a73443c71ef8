"""Exact predictions without some of the tokens, by running the model on the others.

Recurrent layers have no positions. So without a convolution, the result equals that of a step which
is the identity in every layer: no write, no decay.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.model.layers import Cache, evaluating
from mlx_gateloop.model.lm import Model
from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.watch.checks import (
    Positions,
    Tokens,
    check_model,
    check_predicted,
    checked_groups,
    checked_positions,
    checked_tokens,
    num_outputs,
)

ROWS = 16  # texts in a batch; they share the state before the first left-out token
LOGITS = 1 << 23  # maximum size of the logits of a forward pass; bounds the memory
TOKENS = 1 << 11  # maximum tokens of a forward pass; bounds its time


def depends(
    model: nn.Module, tokens: Tokens, left_out: Sequence[Positions] | None = None, *, since: int = 0
) -> np.ndarray:
    """Compute what each prediction loses when earlier tokens are left out.

        loss[m, n] = log p(t_{n+1} | t_0 ... t_n) - log p(t_{n+1} | the same without t_m)

    It is zero for n < m. In [m, m], token m is the last one: its step reads no state either, and
    the prediction comes from its embedding alone. (Softmax mixing, models with a
    convolution and mlx-lm's read one token from an empty state there.)

    Args:
        model: Ours, or a model of mlx-lm with recurrent layers only.
        tokens: Integers `[tokens]`, at least one.
        left_out: Positions of tokens to leave out together, one row per group, such as a word. None
            means one token per row.
        since: First column of the result; earlier logits are not computed.

    Returns:
        Nats, float32 `[tokens, tokens - 1 - since]`, or `[len(left_out), ...]`.

    Raises:
        ValueError: Tokens or positions do not exist, or the model has layers in which no step can
            be left out exactly.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> depends(model, [1, 2, 3]).shape
        (3, 2)
    """
    return deque(depending(model, tokens, left_out, since=since), maxlen=1).pop()


def depending(
    model: nn.Module, tokens: Tokens, left_out: Sequence[Positions] | None = None, *, since: int = 0
) -> Iterator[np.ndarray]:
    """Yield the partial result of `depends` after each forward pass; same arguments."""
    check_model(model)
    ids = checked_tokens(model, tokens)
    groups = checked_groups(left_out, len(ids))
    if since not in range(max(len(ids) - 1, 1)):
        raise InputError(f"since: expected 0 to {max(len(ids) - 2, 0)}, got {shown(since)}")
    check_predicted(model, ids)
    losses = np.zeros((len(groups), len(ids) - 1), np.float32)
    with evaluating(model):
        for _ in _add_losses(losses, model, ids, groups, since):
            yield losses[:, since:]
    yield losses[:, since:]


def without(model: nn.Module, tokens: Tokens, left_out: Positions) -> list[Cache]:
    """Run a model on a text without some of its tokens.

    Args:
        model: Ours, or a model of mlx-lm with recurrent layers only.
        tokens: Integers `[tokens]`, at least one.
        left_out: Positions of the tokens to leave out.

    Returns:
        A cache after the other tokens, in which each left-out step is the identity.

    Raises:
        ValueError: Tokens or positions do not exist, or the model has layers in which no step can
            be left out exactly.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> cache = without(model, [1, 2, 3], [1])
        >>> model(mx.array([[4]]), cache).shape
        (1, 1, 9)
    """
    check_model(model)
    ids = checked_tokens(model, tokens)
    rest = np.delete(ids, checked_positions("left_out", left_out, len(ids)))
    cache: list[Cache] = model.make_cache()
    with evaluating(model):
        for _ in _chunks(model, rest[None], cache, skipped=len(rest)):
            pass
    return cache


def _add_losses(
    losses: np.ndarray, model: nn.Module, ids: np.ndarray, groups: Sequence[np.ndarray], since: int
) -> Iterator[None]:
    """Fill the columns of `losses` from `since`; yield after each forward pass."""
    end = len(ids) - 1
    whole, alone = np.zeros(end, np.float32), np.zeros(end, np.float32)
    for part, logits in _chunks(model, ids[None, :-1], model.make_cache(), since):
        if logits is not None:
            whole[part] = _surprises(logits, ids[None, 1:][:, part])[0]
        yield
    inside = [group[(group >= since) & (group < end)] for group in groups]
    positions = np.unique(np.concatenate(inside)) if inside else np.zeros(0, int)
    for at in np.array_split(positions, -(-len(positions) // _max_tokens(model)) or 1):
        if len(at):
            alone[at] = _surprises_alone(model, ids, at)
            yield
    for row, own in enumerate(inside):
        losses[row, own] = alone[own] - whole[own]
    for found in predictions(model, ids, groups, since):
        if found is not None:
            rows, positions, logits = found
            surprises = _surprises(logits, np.append(ids, 0)[positions + 1])
            for row, at, surprise in zip(rows, positions, surprises, strict=True):
                read = (at > groups[row][0]) & (at >= since) & (at < end)
                losses[row, at[read]] = surprise[read] - whole[at[read]]
        yield


def predictions(
    model: nn.Module, ids: np.ndarray, groups: Sequence[np.ndarray], since: int = 0
) -> Iterator[tuple[list[int], np.ndarray, mx.array] | None]:
    """Run the model on a text once per group of tokens, without that group.

    Groups with nearby first tokens form a batch that starts from one state. Yields the groups'
    indices, positions `[rows, steps]`, padded with `len(ids) - 1`, and the next logits
    `[rows, steps, V]`; None for a forward pass without logits.
    """
    end = len(ids) - 1  # the last token predicts nothing
    order = sorted((r for r, g in enumerate(groups) if g[0] < end), key=lambda r: int(groups[r][0]))
    cache, done = model.make_cache(), 0
    for first in range(0, len(order), ROWS):
        rows = order[first : first + ROWS]
        start = int(groups[rows[0]][0])
        for _ in _chunks(model, ids[None, done:start], cache, start - done):
            yield None
        done = start
        kept = [np.setdiff1d(np.arange(start, end), groups[row]) for row in rows]
        positions = np.full((len(rows), max(map(len, kept))), end)
        for row, at in enumerate(kept):
            positions[row, : len(at)] = at
        skipped = min(int((at < since).sum()) for at in kept)
        copies = _repeated(model, cache, len(rows))
        for part, logits in _chunks(model, ids[positions], copies, skipped):
            yield None if logits is None else (rows, positions[:, part], logits)


def _chunks(
    model: nn.Module, ids: np.ndarray, cache: list[Cache], skipped: int = 0
) -> Iterator[tuple[slice, mx.array | None]]:
    """Run a model on texts; yield chunks and their logits, None for the `skipped` tokens."""
    rows, tokens = ids.shape
    steps = max(1, _max_tokens(model) // rows)
    starts = *range(0, skipped, steps), *range(skipped, tokens, steps), tokens
    for part in starmap(slice, pairwise(starts)):
        logits = model(mx.array(ids[:, part]), cache)
        mx.eval([entry.state for entry in cache])
        yield part, logits if part.start >= skipped else None


def _max_tokens(model: nn.Module) -> int:
    return min(TOKENS, max(1, LOGITS // num_outputs(model)))


def _surprises(logits: mx.array, following: np.ndarray) -> np.ndarray:
    return np.array(cross_entropy(logits, mx.array(following)))


def _surprises_alone(model: nn.Module, ids: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Compute -log p of the token after each position, given only the token at it."""
    if isinstance(model, Model) and model.args.mixer == "gate_loop" and not model.args.conv_size:
        cache = model.make_cache()
        for entry in cache:
            entry.left_padding = mx.array([len(at)])  # every step is masked: y = 0
        return _surprises(model(mx.array(ids[None, at]), cache)[0], ids[at + 1])
    return _surprises(model(mx.array(ids[at, None]), model.make_cache())[:, 0], ids[at + 1])


def _repeated(model: nn.Module, cache: list[Cache], rows: int) -> list[Cache]:
    def repeat(value: Any) -> Any:
        return mx.repeat(value, rows, 0) if isinstance(value, mx.array) else value

    copies: list[Cache] = model.make_cache()
    for copy, entry in zip(copies, cache, strict=True):
        if not entry.empty():
            copy.state = tree_map(repeat, entry.state)
    return copies
