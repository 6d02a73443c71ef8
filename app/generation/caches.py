"""Snapshots of mlx-lm's caches, and their restoration.

A snapshot copies the constant-size entries of recurrent layers. Attention's keys and values grow
with the tokens: each snapshot adds a part for the tokens since the last one and shares the rest.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .prefix_cache import Parts, PrefixState

Cache = Any  # mlx-lm declares no types
Form = tuple[tuple[int, ...], str]  # shape and dtype of an array in a snapshot
LENGTH = 2  # axis of the tokens in keys and values, [1, heads, tokens, size]
NONE = np.zeros(0, np.float32)  # stands for an entry that is not set


class Caches:
    """The caches of a model for one sequence."""

    def __init__(self, model: nn.Module) -> None:
        from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache

        self.all: list[Cache] = make_prompt_cache(model)
        leaves = list(_leaves(self.all))
        self._constant = [leaf for leaf in leaves if isinstance(leaf, ArraysCache)]
        self._growing = [leaf for leaf in leaves if isinstance(leaf, KVCache | RotatingKVCache)]
        known = [*self._constant, *self._growing]
        self._others = [leaf for leaf in leaves if leaf not in known]
        self._parts: list[Parts] = [()] * (2 * len(self._growing))  # snapshots of keys and values

    @property
    def entries(self) -> list[mx.array | None]:
        """Constant-size entries of the recurrent layers."""
        return [entry for leaf in self._constant for entry in leaf.cache]

    @property
    def keys_values(self) -> list[mx.array]:
        """Keys and values, with space for more tokens."""
        both = [array for leaf in self._growing for array in (leaf.keys, leaf.values)]
        return [array for array in both if array is not None]

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, to evaluate."""
        others = dict(tree_flatten([leaf.state for leaf in self._others])).values()
        found = [*self.entries, *self.keys_values, *others]
        return [array for array in found if isinstance(array, mx.array)]

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the constant-size entries, and of those that grow with the tokens."""
        constant = sum(entry.nbytes for entry in self.entries if entry is not None)
        return constant, sum(array.nbytes for array in self.arrays) - constant

    def checkpoint(self) -> tuple[list[mx.array | None], list[int]]:
        """Return what `rollback` needs to remove the next tokens."""
        return self.entries, [leaf.offset for leaf in self._growing]

    def rollback(self, checkpoint: tuple[list[mx.array | None], list[int]]) -> None:
        """Remove the tokens since a checkpoint; a cache that cannot be trimmed gets no snapshot."""
        entries, offsets = checkpoint
        self._set_entries(entries)
        for leaf, offset in zip(self._growing, offsets, strict=True):
            if leaf.is_trimmable():
                leaf.trim(leaf.offset - offset)

    def snapshot(self) -> tuple[tuple[np.ndarray, ...], tuple[Parts, ...]] | None:
        """Return the states and the parts of keys and values for a `PrefixState`.

        None for other kinds of caches, unused caches, and a full rotating cache, which has
        overwritten its first tokens.
        """
        whole = all(leaf.keys is not None and leaf.is_trimmable() for leaf in self._growing)
        if self._others or not whole:
            return None
        for index, leaf in enumerate(self._growing):
            for number, array in ((2 * index, leaf.keys), (2 * index + 1, leaf.values)):
                known = sum(part.shape[LENGTH] for part in self._parts[number])
                new = to_numpy(array[:, :, known : leaf.offset])
                self._parts[number] = (*self._parts[number], new)
        return tuple(map(to_numpy, self.entries)), tuple(self._parts)

    def restore(self, prefix: PrefixState) -> None:
        """Restore the state of a prefix; `Layout.fits` must hold."""
        self._set_entries([_to_mlx(state) for state in prefix.states])
        self._parts = list(prefix.keys_values)
        for leaf, keys, values in zip(
            self._growing, prefix.keys_values[::2], prefix.keys_values[1::2], strict=True
        ):
            leaf.update_and_fetch(*(_to_mlx(np.concatenate(p, LENGTH)) for p in (keys, values)))

    @property
    def can_join(self) -> bool:
        """True if all caches have a constant size, and have been used."""
        used = all(entry is not None for entry in self.entries)
        return used and not self._growing and not self._others

    def _set_entries(self, entries: list[mx.array | None]) -> None:
        rest = iter(entries)
        for leaf in self._constant:
            leaf.cache = [next(rest) for _ in leaf.cache]


@contextmanager
def joined(caches: Sequence[Caches]) -> Iterator[list[Cache]]:
    """Join the caches of several sequences for one forward pass, and divide them after it."""
    from mlx_lm.models.cache import ArraysCache

    layers: list[Cache] = [ArraysCache(len(layer.cache)) for layer in caches[0].all]
    for layer, parts in zip(layers, zip(*(each.all for each in caches), strict=True), strict=True):
        each_entry = zip(*(part.cache for part in parts), strict=True)
        layer.cache = [mx.concatenate([*entry]) for entry in each_entry]
    yield layers
    divided = [mx.split(entry, len(caches)) for layer in layers for entry in layer.cache]
    for index, each in enumerate(caches):
        each._set_entries([parts[index] for parts in divided])


@dataclass(frozen=True)
class Layout:
    """Shapes and dtypes of a model's cache entries, and the size of its logits."""

    states: tuple[Form, ...]  # constant-size entries of recurrent layers
    keys_values: tuple[Form, ...]  # keys and values, with 0 tokens
    outputs: int  # size of the logits

    def fits(self, prefix: PrefixState) -> bool:
        """Return True if a prefix belongs to this model and is complete."""
        lengths = {sum(part.shape[LENGTH] for part in parts) for parts in prefix.keys_values}
        forms = [{_form(part[:, :, :0]) for part in parts} for parts in prefix.keys_values]
        return (
            tuple(map(_form, prefix.states)) == self.states
            and forms == [{form} for form in self.keys_values]
            and lengths <= {len(prefix.ids) - prefix.unread}
        )


def layout(model: nn.Module) -> Layout:
    """Find the layout of a model's caches without computing anything."""
    caches = Caches(model)
    logits = model(mx.array([[0]]), cache=caches.all)
    states = [_form(NONE) if entry is None else _form(entry) for entry in caches.entries]
    keys_values = [_form(array[:, :, :0]) for array in caches.keys_values]
    return Layout(tuple(states), tuple(keys_values), logits.shape[-1])


def _leaves(caches: list[Cache]) -> Iterator[Cache]:
    for cache in caches:
        if hasattr(cache, "caches"):  # a layer with two mixers has a list
            yield from _leaves(cache.caches)
        else:
            yield cache


def _form(array: mx.array | np.ndarray) -> Form:
    dtype = str(array.dtype).removeprefix("mlx.core.")
    return tuple(array.shape), "uint16" if dtype == "bfloat16" else dtype


def to_numpy(array: mx.array | None) -> np.ndarray:
    """Copy an array to NumPy; bfloat16 becomes uint16 with the same bits."""
    if array is None:
        return NONE
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _to_mlx(array: np.ndarray) -> mx.array | None:
    if not array.size:
        return None
    return mx.array(array).view(mx.bfloat16) if array.dtype == np.uint16 else mx.array(array)
