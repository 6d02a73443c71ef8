"""An n-gram model with interpolated modified Kneser-Ney smoothing.

Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1998):
three discounts for each order, and continuation counts below the highest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_UNSEEN = -1


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length, sorted by their context, the (n-1)-gram before the last token."""

    keys: np.ndarray  # `[G]` context times vocabulary plus last token, ascending
    share: np.ndarray  # `[G]` discounted count over its context's total
    rest: np.ndarray  # `[C]` probability that a context leaves to shorter ones

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the n-grams of some keys, or `_UNSEEN`."""
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[positions] == keys, positions, _UNSEEN)


class KneserNey:
    """An n-gram model of a stream of tokens `[N]`, of n-grams up to `order`."""

    def __init__(self, tokens: np.ndarray, order: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        tokens = tokens.astype(np.int64)
        ends: list[np.ndarray] = []  # the n-gram that ends at each position, for each n
        keys: list[np.ndarray] = []
        counts: list[np.ndarray] = []
        before = np.zeros(len(tokens), np.int64)
        for n in range(1, order + 1):
            unique, first, here, count = np.unique(
                (before * vocabulary + tokens)[n - 1 :],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if n > 1:  # so often a shorter n-gram continues another token
                suffixes = ends[-1][first + n - 1]
                counts[-1] = np.maximum(np.bincount(suffixes, minlength=len(keys[-1])), 1)
            end = np.concatenate([np.zeros(n - 1, np.int64), here])
            before = np.concatenate([[0], end[:-1]])
            ends.append(end)
            keys.append(unique)
            counts.append(count)
        contexts = [1, *map(len, keys[:-1])]
        self._orders = [
            _Order(key, *_smoothed(count, key // vocabulary, contexts[n]))
            for n, (key, count) in enumerate(zip(keys, counts, strict=True))
        ]

    def probabilities(self, context: Sequence[int]) -> np.ndarray:
        """Return the probabilities `[vocabulary]` of the token after some others."""
        result = np.full(self._vocabulary, 1 / self._vocabulary)
        for n, order in enumerate(self._orders):
            if n > len(context):
                break
            found = self._gram(context[len(context) - n :])
            if found == _UNSEEN:
                break
            first, last = np.searchsorted(
                order.keys, (found * self._vocabulary, (found + 1) * self._vocabulary)
            )
            result *= order.rest[found]
            result[order.keys[first:last] % self._vocabulary] += order.share[first:last]
        return result

    def _gram(self, tokens: Sequence[int]) -> int:
        found = 0
        for token, order in zip(tokens, self._orders, strict=False):
            found = int(order.find(np.array([found * self._vocabulary + token]))[0])
            if found == _UNSEEN:
                break
        return found

    def bits(self, tokens: np.ndarray) -> float:
        """Return the bits that a stream takes after its first token, each after all before it."""
        tokens = tokens.astype(np.int64)
        likely = np.full(len(tokens), 1 / self._vocabulary)
        before = np.zeros(len(tokens), np.int64)  # the (n-1)-gram that ends before each position
        for order in self._orders:
            seen = before != _UNSEEN
            keys = np.where(seen, before * self._vocabulary + tokens, 0)
            here = np.where(seen, order.find(keys), _UNSEEN)
            mixed = np.where(here == _UNSEEN, 0, order.share[here]) + order.rest[before] * likely
            likely = np.where(seen, mixed, likely)
            before = np.concatenate([[_UNSEEN], here[:-1]])
        return float(-np.log2(likely[1:]).sum())


def _smoothed(counts: np.ndarray, contexts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Discount the counts of n-grams; a context without any leaves everything to shorter ones."""
    n1, n2, n3, n4 = (max(1, int((counts == count).sum())) for count in (1, 2, 3, 4))
    scale = n1 / (n1 + 2 * n2)
    steps = [1 - 2 * scale * n2 / n1, 2 - 3 * scale * n3 / n2, 3 - 4 * scale * n4 / n3]
    # Estimates from few n-grams can leave their bounds.
    discounts = np.clip([0.0, *steps], 0, [0, 1, 2, 3])[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, size)
    rest = np.ones(size)
    np.divide(np.bincount(contexts, discounts, size), totals, out=rest, where=totals > 0)
    return (counts - discounts) / totals[contexts], rest
