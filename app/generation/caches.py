"""The caches of a model that mlx-lm runs: what they hold is kept at a token, and put back.

A recurrent layer's entries have a constant size and are kept whole. Attention's keys and values
grow with the tokens, of which each boundary of a conversation keeps those since the one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .states import Boundary, Parts

Cache = Any  # mlx-lm declares no types
Form = tuple[tuple[int, ...], str]  # shape and dtype of an array as it is kept
LENGTH = 2  # axis of the tokens in keys and values, [1, heads, tokens, size]
NONE = np.zeros(0, np.float32)  # kept of an entry that is not set


class Caches:
    """Caches of one sequence of a model."""

    def __init__(self, model: nn.Module) -> None:
        from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache

        self.all: list[Cache] = make_prompt_cache(model)
        leaves = list(_leaves(self.all))
        self._constant = [leaf for leaf in leaves if isinstance(leaf, ArraysCache)]
        self._growing = [leaf for leaf in leaves if isinstance(leaf, KVCache | RotatingKVCache)]
        known = [*self._constant, *self._growing]
        self._others = [leaf for leaf in leaves if leaf not in known]
        self._parts: list[Parts] = [()] * (2 * len(self._growing))  # kept of keys and values

    @property
    def entries(self) -> list[mx.array | None]:
        """The recurrent layers' entries, of constant size."""
        return [entry for leaf in self._constant for entry in leaf.cache]

    @property
    def attended(self) -> list[mx.array]:
        """Keys and values, with room for more tokens."""
        both = [array for leaf in self._growing for array in (leaf.keys, leaf.values)]
        return [array for array in both if array is not None]

    @property
    def arrays(self) -> list[mx.array]:
        """All of it, to be evaluated."""
        others = dict(tree_flatten([leaf.state for leaf in self._others])).values()
        found = [*self.entries, *self.attended, *others]
        return [array for array in found if isinstance(array, mx.array)]

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of what has a constant size, and of what grows with the tokens."""
        constant = sum(entry.nbytes for entry in self.entries if entry is not None)
        return constant, sum(array.nbytes for array in self.arrays) - constant

    def mark(self) -> tuple[list[mx.array | None], list[int]]:
        """Return what `go_back` needs to take the next tokens back."""
        return self.entries, [leaf.offset for leaf in self._growing]

    def go_back(self, mark: tuple[list[mx.array | None], list[int]]) -> None:
        """Take back what was read since; a cache that cannot be trimmed can no longer be kept."""
        entries, offsets = mark
        self._set_entries(entries)
        for leaf, offset in zip(self._growing, offsets, strict=True):
            if leaf.is_trimmable():
                leaf.trim(leaf.offset - offset)

    def keep(self) -> tuple[tuple[np.ndarray, ...], tuple[Parts, ...]] | None:
        """Return the states and the parts of keys and values of a `Boundary`.

        None where tokens are missing: a rotating cache that is full has written over its first.
        None too for caches of other kinds, and where a layer does not use its own.
        """
        if self._others or not all(leaf.keys is not None for leaf in self._growing):
            return None
        if not all(leaf.is_trimmable() for leaf in self._growing):
            return None
        for index, leaf in enumerate(self._growing):
            for place, array in ((2 * index, leaf.keys), (2 * index + 1, leaf.values)):
                known = sum(part.shape[LENGTH] for part in self._parts[place])
                new = _kept(array[:, :, known : leaf.offset])
                self._parts[place] = (*self._parts[place], new)
        return tuple(map(_kept, self.entries)), tuple(self._parts)

    def put_back(self, boundary: Boundary) -> None:
        """Go on from a boundary that fits; `Layout.fits`."""
        self._set_entries([_restored(state) for state in boundary.states])
        self._parts = list(boundary.attended)
        for leaf, keys, values in zip(
            self._growing, boundary.attended[::2], boundary.attended[1::2], strict=True
        ):
            leaf.update_and_fetch(*(_restored(np.concatenate(p, LENGTH)) for p in (keys, values)))

    def _set_entries(self, entries: list[mx.array | None]) -> None:
        rest = iter(entries)
        for leaf in self._constant:
            leaf.cache = [next(rest) for _ in leaf.cache]


@dataclass(frozen=True)
class Layout:
    """Shapes and dtypes of a model's cache entries, and the number of tokens that it draws from."""

    states: tuple[Form, ...]  # recurrent layers' entries, of constant size
    attended: tuple[Form, ...]  # keys and values, with 0 tokens
    outputs: int  # size of the logits

    def fits(self, boundary: Boundary) -> bool:
        """Return False for a boundary that is not of this model, or not whole."""
        lengths = {sum(part.shape[LENGTH] for part in parts) for parts in boundary.attended}
        forms = [{_form(part[:, :, :0]) for part in parts} for parts in boundary.attended]
        return (
            tuple(map(_form, boundary.states)) == self.states
            and forms == [{form} for form in self.attended]
            and lengths <= {len(boundary.ids) - boundary.unread}
        )


def layout(model: nn.Module) -> Layout:
    """Find out what a model's caches hold; nothing is computed."""
    caches = Caches(model)
    logits = model(mx.array([[0]]), cache=caches.all)
    states = [_form(NONE) if entry is None else _form(entry) for entry in caches.entries]
    attended = [_form(array[:, :, :0]) for array in caches.attended]
    return Layout(tuple(states), tuple(attended), logits.shape[-1])


def _leaves(caches: list[Cache]) -> Iterator[Cache]:
    for cache in caches:
        if hasattr(cache, "caches"):  # a list of them, where a layer has two mixers
            yield from _leaves(cache.caches)
        else:
            yield cache


def _form(array: mx.array | np.ndarray) -> Form:
    dtype = str(array.dtype).removeprefix("mlx.core.")
    return tuple(array.shape), "uint16" if dtype == "bfloat16" else dtype


def _kept(array: mx.array | None) -> np.ndarray:
    """Copy an array to NumPy, which has no bfloat16: its bits become uint16."""
    if array is None:
        return NONE
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _restored(array: np.ndarray) -> mx.array | None:
    if not array.size:
        return None
    return mx.array(array).view(mx.bfloat16) if array.dtype == np.uint16 else mx.array(array)
