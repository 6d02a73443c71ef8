"""Rows for tokens in constant memory: recent ones whole, older ones summed in groups."""

from collections.abc import Callable, Sequence

import numpy as np

GROUP = 4  # rows of a level that become one of the next

Wrap = Callable[[np.ndarray], np.ndarray]


class Pyramid:
    """Sums over tokens: a row for each of the last tokens, then for 4, 16 and 64 of them.

    A level that is full passes its older half on, four rows as one. The last has nowhere to pass
    rows to and merges them in place, so its oldest rows grow: to 256 tokens, to 1,024, and on. The
    sizes are the rows of each level, multiples of 8; `wrap` is applied to sums, as for angles.
    """

    def __init__(self, width: int, sizes: Sequence[int], wrap: Wrap | None = None) -> None:
        self.width, self.tokens, self._wrap = width, 0, wrap
        self._sizes = list(sizes)
        self._rows = [np.empty((0, width), np.float32) for _ in sizes]  # they grow up to the sizes
        self._tokens = [np.empty(0, np.int64) for _ in sizes]  # that a row stands for
        self._filled = [0] * len(sizes)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in (self._rows, self._tokens) for array in arrays)

    @property
    def grouped(self) -> int:
        """Number of the first tokens that have no rows of their own."""
        return self.tokens - self._filled[0]

    def append(self, rows: np.ndarray) -> None:
        """Add rows for new tokens, `[tokens, width]`."""
        self._add(0, rows, np.ones(len(rows), np.int64))
        self.tokens += len(rows)

    def first(self, tokens: int) -> "Pyramid":
        """Copy the rows of the first tokens; one that reaches beyond is cut in proportion."""
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
        """Return the stored rows that hold tokens from start to before stop, and their tokens.

        Sums are `[rows, width]`. A row that reaches beyond start or stop is cut in proportion.
        """
        filled = list(zip(self._rows, self._tokens, self._filled, strict=True))[::-1]
        tokens = np.concatenate([counts[:size] for _, counts, size in filled])
        ends = tokens.cumsum()
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(ends, stop) + 1
        parts, before = [], 0
        for rows, _, size in filled:
            parts.append(rows[max(first - before, 0) : min(max(last - before, 0), size)])
            before += size
        kept = slice(first, last)
        inside = np.minimum(ends[kept], stop) - np.maximum(ends[kept] - tokens[kept], start)
        share = (inside / tokens[kept]).astype(np.float32)
        return np.concatenate(parts) * share[:, None], inside

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return `[tokens, width]`; the tokens of a group share its sum evenly."""
        rows, tokens = self.stored(start, stop)
        even: np.ndarray = np.repeat(rows / tokens[:, None].astype(np.float32), tokens, 0)
        return even

    def _add(self, level: int, rows: np.ndarray, tokens: np.ndarray) -> None:
        size = self._sizes[level]
        while len(rows):
            if self._filled[level] == size:
                self._pass_on(level)
            at = self._filled[level]
            room = min(size - at, len(rows))
            for arrays in (self._rows, self._tokens):
                arrays[level] = _with_room(arrays[level], at + room, size)
            self._rows[level][at : at + room] = rows[:room]
            self._tokens[level][at : at + room] = tokens[:room]
            self._filled[level] += room
            rows, tokens = rows[room:], tokens[room:]

    def _pass_on(self, level: int) -> None:
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
    """Values of the last tokens, at least `size` of them."""

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        self.size, self.tokens = size, 0  # tokens that came
        self._held = np.empty((0, *shape), np.float32)  # it grows to twice the size
        self._filled = 0

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    def first(self, tokens: int) -> "Window":
        """Copy what is held of the first tokens."""
        copy = Window(self.size, self._held.shape[1:])
        copy.tokens = tokens
        copy._filled = max(self._filled - (self.tokens - tokens), 0)
        copy._held = self._held[: copy._filled].copy()
        return copy

    def append(self, values: np.ndarray, tokens: int) -> None:
        """Add new tokens: the values of the last ones `[...]`, at least of `size` or all."""
        self.tokens += tokens
        values = values[-self.size :]
        if tokens > len(values):
            self._filled = 0  # what is held does not reach up to these
        if self._filled + len(values) > 2 * self.size:
            keep = self.size - len(values)
            self._held[:keep] = self._held[self._filled - keep : self._filled].copy()
            self._filled = keep
        self._held = _with_room(self._held, self._filled + len(values), 2 * self.size)
        self._held[self._filled : self._filled + len(values)] = values
        self._filled += len(values)

    def read(self, stop: int) -> np.ndarray:
        """Return the values of at most `size` tokens that end before stop."""
        end = self._filled - (self.tokens - stop)
        return self._held[max(end - self.size, 0) : max(end, 0)]


def _with_room(array: np.ndarray, rows: int, most: int) -> np.ndarray:
    """Return the array if it has so many rows, or a copy with twice as many, but not above most."""
    if rows <= len(array):
        return array
    larger = np.empty((min(max(rows, 2 * len(array)), most), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Bring angles into (-pi, pi]."""
    turned: np.ndarray = angle - 2 * np.pi * np.ceil(angle / (2 * np.pi) - 0.5)
    return turned
