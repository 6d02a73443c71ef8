"""The state transitions of a sequence in NumPy arrays, and measures of memory on them."""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from mlx_gateloop.files import replacing

# The range of the decay rate -log|a| that `Trace.columns` encodes in 8 bits, on a log scale:
# half-lives from 0.04 to 700,000 tokens. |a| itself in 8 bits would lose every long memory.
LOW, HIGH = 1e-6, 16.0
KEPT, SHARE = 0.5, 0.25  # of a state and of channels: the definition of a reset
BLOCK = 64  # tokens
RATE, PHASE, QUERY, KEY = range(4)


class Trace:
    """Transitions, queries and keys of every layer, channel and token.

    One thread may append while others read. Tokens are stored in blocks, which branches share.

    Args:
        layers: Layers of the model.
        channels: Channels of a layer.
    """

    def __init__(self, layers: int, channels: int) -> None:
        self.layers, self.channels, self.tokens = layers, channels, 0
        self.full = False  # a recorder had more
        self._blocks: list[np.ndarray] = []  # float32 [4, layers, BLOCK, channels]

    @property
    def bytes_per_token(self) -> int:
        return 4 * self.layers * self.channels * 4

    def append(self, columns: np.ndarray) -> None:
        """Add tokens: float32 `[4, layers, tokens, channels]`, -log|a|, phase, query and key."""
        while columns.shape[2]:
            start = self.tokens % BLOCK
            if start == 0:
                shape = (4, self.layers, BLOCK, self.channels)
                self._blocks.append(np.empty(shape, np.float32))
            part = columns[:, :, : BLOCK - start]
            self._blocks[-1][:, :, start : start + part.shape[2]] = part
            self.tokens += part.shape[2]  # last, so that a reader finds whole tokens only
            columns = columns[:, :, part.shape[2] :]

    def truncate(self, tokens: int) -> None:
        """Drop all but the first tokens."""
        blocks = self._blocks[: -(-tokens // BLOCK)]
        if tokens % BLOCK:  # the next append writes to it, and a branch may share it
            blocks[-1] = blocks[-1].copy()
        self._blocks, self.tokens = blocks, tokens

    def branch(self, tokens: int) -> "Trace":
        """Make another trace with the same first tokens; copies at most one block."""
        copy = Trace(self.layers, self.channels)
        copy._blocks, copy.tokens = list(self._blocks), self.tokens
        copy.truncate(tokens)
        return copy

    def magnitude(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return |a|, float32 `[tokens, channels]`."""
        magnitude: np.ndarray = np.exp(-self._read(RATE, layer, start, stop))
        return magnitude

    def phase(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return arg a in (-pi, pi], float32 `[tokens, channels]`."""
        return self._read(PHASE, layer, start, stop)

    def columns(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Encode magnitude and phase in 8 bits for display, uint8 `[tokens, 2, channels]`.

        0 to 255 are log(-log|a|) from log(LOW) to log(HIGH), and the phase from -pi to pi.
        """
        stop = self.tokens if stop is None else stop
        rate = np.clip(self._read(RATE, layer, start, stop), LOW, HIGH)
        level = np.log(rate / LOW) / np.log(HIGH / LOW)
        turns = self._read(PHASE, layer, start, stop) / (2 * np.pi) + 0.5
        encoded: np.ndarray = np.rint(np.stack([level, turns], 1) * 255).astype(np.uint8)
        return encoded

    def averages(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Average |a| over channels, float32 `[tokens, layers]`.

        The paper's figure is its mean over the layers.
        """
        stop = self.tokens if stop is None else stop
        layers = range(self.layers)
        return np.stack([self.magnitude(layer, start, stop).mean(1) for layer in layers], 1)

    def resets(self, stop: int | None = None) -> np.ndarray:
        """Find tokens at which many of the channels that usually remember forget: the resets.

        A channel of any layer remembers if the geometric mean of its |a| over the tokens is at
        least `KEPT`, and forgets at a token where |a| is below that. A token is a reset if at
        least the share `SHARE` of these channels forget at it. docs/resets.md says why.

        Args:
            stop: Look at the first tokens, this many; None means all.

        Returns:
            Indices of tokens, ascending.
        """
        tokens = self.tokens if stop is None else stop  # read once: another thread may append
        forgets, remembering = np.zeros(tokens, np.int64), 0
        for layer in range(self.layers):
            rate = self._read(RATE, layer, 0, tokens)
            remembers = rate.mean(0) <= -np.log(KEPT) if tokens else np.zeros(0, bool)
            forgets += (rate[:, remembers] > -np.log(KEPT)).sum(1)
            remembering += int(remembers.sum())
        return np.flatnonzero(forgets >= max(1, SHARE * remembering))

    def remembered(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute the share of each earlier token that is left in the state at this one.

        magnitude  mean over channels of |a_{m+1}| ... |a_n|
        attention  sum over channels of Re(q_n a_{m+1} ... a_n k_m), the surrogate attention

        Args:
            layer: The layer.
            token: n, below `tokens`.

        Returns:
            Both, float32 `[token + 1]`, for m = 0 to n.
        """
        left, angle = self.left(layer, token), self._since(PHASE, layer, token)
        query = self._read(QUERY, layer, token, token + 1)
        full = query * left * np.cos(angle) * self._read(KEY, layer, 0, token + 1)
        return left.mean(1).astype(np.float32), full.sum(1).astype(np.float32)

    def left(self, layer: int, token: int) -> np.ndarray:
        """Compute the share of each earlier token that each channel still holds at this one.

        A product of |a| falls with every token by construction, whatever was written.

        Args:
            layer: The layer.
            token: n, below `tokens`.

        Returns:
            |a_{m+1}| ... |a_n|, float64 `[token + 1, channels]`, for m = 0 to n.
        """
        left: np.ndarray = np.exp(-self._since(RATE, layer, token))
        return left

    def _since(self, what: int, layer: int, token: int) -> np.ndarray:
        """Sum over m+1..n from the end; differences of sums from the start would lose digits."""
        values = self._read(what, layer, 1, token + 1).astype(np.float64)
        sums = values[::-1].cumsum(0)[::-1]
        return np.concatenate([sums, np.zeros((1, self.channels))])

    def save(self, path: str | os.PathLike[str], texts: Sequence[str] = ()) -> None:
        """Write an .npz file: magnitude and phase `[layers, tokens, channels]`, averages, texts.

        Args:
            path: The file.
            texts: The tokens' texts.
        """
        stop, layers = self.tokens, range(self.layers)
        arrays = {
            "magnitude": np.stack([self.magnitude(layer, 0, stop) for layer in layers]),
            "phase": np.stack([self.phase(layer, 0, stop) for layer in layers]),
            "averages": self.averages(0, stop),
            "texts": np.array(list(texts), dtype=np.str_),
        }
        # An open file, as savez appends .npz to other names.
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        start, stop, _ = slice(start, stop).indices(self.tokens)
        first = start // BLOCK
        blocks = [block[what, layer] for block in self._blocks[first : -(-stop // BLOCK)]]
        if start >= stop:
            return np.zeros((0, self.channels), np.float32)
        return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]


def total_bytes(traces: Iterable[Trace | None]) -> int:
    """Sum the memory of traces; blocks shared by branches count once."""
    blocks = {id(block): block.nbytes for trace in traces if trace for block in trace._blocks}
    return sum(blocks.values())
