"""The state transitions of a sequence in NumPy arrays, every token whole."""

import numpy as np

from mlx_gateloop.watch.measures import KEY, PHASE, QUERY, RATE, Measures

BLOCK = 64  # tokens


class Trace(Measures):
    """Transitions, queries and keys of every layer, channel and token.

    One thread may append while others read. Tokens are stored in blocks, which branches share.

    Args:
        layers: Layers of the model.
        channels: Channels of a layer.
    """

    def __init__(self, layers: int, channels: int) -> None:
        self.layers, self.channels, self.tokens = layers, channels, 0
        self.names = tuple(f"model.layers.{layer}.time_mixing" for layer in range(layers))
        self.full = False  # a recorder had more
        self._blocks: list[np.ndarray] = []  # float32 [4, layers, BLOCK, channels]

    @property
    def parts(self) -> list[np.ndarray]:
        return self._blocks

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

    def _full(self, layer: int, token: int) -> np.ndarray:
        rate, angle = (self._since(what, layer, token) for what in (RATE, PHASE))
        query = self._read(QUERY, layer, token, token + 1)
        full = query * np.exp(-rate) * np.cos(angle) * self._read(KEY, layer, 0, token + 1)
        row: np.ndarray = full.sum(1).astype(np.float32)
        return row

    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        start, stop, _ = slice(start, stop).indices(self.tokens)
        first = start // BLOCK
        blocks = [block[what, layer] for block in self._blocks[first : -(-stop // BLOCK)]]
        if start >= stop:
            return np.zeros((0, self.channels), np.float32)
        return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]
