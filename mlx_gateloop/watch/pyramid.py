"""Storage of rows in constant memory: recent tokens exactly, older ones as sums of groups."""

from collections.abc import Callable, Sequence

import numpy as np

GROUP = 4  # rows of a level that become one of the next

Wrap = Callable[[np.ndarray], np.ndarray]


class Pyramid:
    """Sums over tokens: one row per recent token, then rows for 4, 16 and 64 tokens.

    A full level merges groups of four rows of its older half, and passes them to the next level.
    The last level merges in place, so its oldest rows cover 256 tokens, then 1,024 and so on.
    `sizes` are the rows of each level, multiples of 8; `wrap` normalises sums of angles.
    """

    def __init__(self, width: int, sizes: Sequence[int], wrap: Wrap | None = None) -> None:
        self.width, self.tokens, self._wrap = width, 0, wrap
        self._sizes = list(sizes)
        self._rows = [np.empty((0, width), np.float32) for _ in sizes]  # grow up to the sizes
        self._tokens = [np.empty(0, np.int64) for _ in sizes]  # number of tokens of each row
        self._filled = [0] * len(sizes)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in (self._rows, self._tokens) for array in arrays)

    @property
    def grouped(self) -> int:
        """Number of the first tokens that are stored in groups."""
        return self.tokens - self._filled[0]

    def append(self, rows: np.ndarray) -> None:
        """Add rows for new tokens, `[tokens, width]`."""
        self._add(0, rows, np.ones(len(rows), np.int64))
        self.tokens += len(rows)

    def first(self, tokens: int) -> "Pyramid":
        """Copy the rows of the first tokens; scale a row that also covers later ones."""
        copy = Pyramid(self.width, self._sizes, self._wrap)
        copy.tokens = left = tokens
        for level in reversed(range(len(self._rows))):
            counts = self._tokens[level][: self._filled[level]]
            inside = np.clip(left - (counts.cumsum() - counts), 0, counts)
            size = int(np.count_nonzero(inside))
            share = (inside[:size] / counts[:size]).astype(np.float32)
            copy._rows[level] = self._rows[level][:size] * share[:, None]
            copy._tokens[level] = inside[:size]
            copy._filled[level] = size
            left -= int(inside.sum())
        return copy

    def stored(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored sums of tokens start to stop (shares of rows) and their counts."""
        filled = list(zip(self._rows, self._tokens, self._filled, strict=True))[::-1]
        tokens = np.concatenate([counts[:size] for _, counts, size in filled])
        ends = tokens.cumsum()
        first = np.searchsorted(ends, start, "right")
        kept = slice(first, np.searchsorted(ends, stop) + 1 if start < stop else first)
        parts, before = [], 0
        for rows, _, size in filled:
            parts.append(rows[max(first - before, 0) : min(max(kept.stop - before, 0), size)])
            before += size
        inside = np.minimum(ends[kept], stop) - np.maximum(ends[kept] - tokens[kept], start)
        share = (inside / tokens[kept]).astype(np.float32)
        return np.concatenate(parts) * share[:, None], inside

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return `[tokens, width]`; the tokens of a group share its sum evenly."""
        rows, tokens = self.stored(start, stop)
        return np.repeat(rows / tokens[:, None].astype(np.float32), tokens, 0)

    def _add(self, level: int, rows: np.ndarray, tokens: np.ndarray) -> None:
        size = self._sizes[level]
        while len(rows):
            if self._filled[level] == size:
                self._merge(level)
            at = self._filled[level]
            count = min(size - at, len(rows))
            for arrays in (self._rows, self._tokens):
                arrays[level] = _grown(arrays[level], at + count, size)
            self._rows[level][at : at + count] = rows[:count]
            self._tokens[level][at : at + count] = tokens[:count]
            self._filled[level] += count
            rows, tokens = rows[count:], tokens[count:]

    def _merge(self, level: int) -> None:
        rows, tokens, filled = self._rows[level], self._tokens[level], self._filled[level]
        half = filled // 2
        merged = rows[:half].reshape(-1, GROUP, self.width).sum(1)
        if self._wrap is not None:
            merged = self._wrap(merged)
        counts = tokens[:half].reshape(-1, GROUP).sum(1)
        stay = 0
        if level == len(self._rows) - 1:
            stay = half // GROUP
            rows[:stay], tokens[:stay] = merged, counts
        self._filled[level] = stay + filled - half
        for array in (rows, tokens):
            array[stay : self._filled[level]] = array[half:filled].copy()
        if not stay:
            self._add(level + 1, merged, counts)


class Window:
    """Values of at least the last `size` tokens."""

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        self.size, self.tokens = size, 0  # tokens appended
        self._values = np.empty((0, *shape), np.float32)  # grows to twice the size
        self._filled = 0

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def first(self, tokens: int) -> "Window":
        copy = Window(self.size, self._values.shape[1:])
        copy.tokens = tokens
        copy._filled = max(self._filled - (self.tokens - tokens), 0)
        copy._values = self._values[: copy._filled].copy()
        return copy

    def append(self, values: np.ndarray, tokens: int) -> None:
        """Add new tokens, with values of all or at least the last `size` of them."""
        self.tokens += tokens
        values = values[-self.size :]
        if tokens > len(values):
            self._filled = 0  # gap between the old values and these
        if self._filled + len(values) > 2 * self.size:
            keep = self.size - len(values)
            self._values[:keep] = self._values[self._filled - keep : self._filled].copy()
            self._filled = keep
        self._values = _grown(self._values, self._filled + len(values), 2 * self.size)
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)

    def read(self, stop: int) -> np.ndarray:
        """Return the values of the last `size` tokens before stop, or fewer."""
        end = self._filled - (self.tokens - stop)
        return self._values[max(end - self.size, 0) : max(end, 0)]


def _grown(array: np.ndarray, rows: int, max_rows: int) -> np.ndarray:
    """Grow an array to at least this many rows, by doubling up to `max_rows`."""
    if rows <= len(array):
        return array
    larger = np.empty((min(max(rows, 2 * len(array)), max_rows), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Wrap angles to (-pi, pi]."""
    return angle - 2 * np.pi * np.ceil(angle / (2 * np.pi) - 0.5)
