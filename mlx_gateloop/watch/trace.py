"""The state transitions of a sequence in NumPy arrays, every token whole."""

import numpy as np

from mlx_gateloop.watch.measures import KEY, PHASE, QUERY, RATE, Measures


class Trace(Measures):
    """Transitions, queries and keys of every layer, channel and token of one of our models.

    `EndlessTrace` is for texts of any length and models of any type; this one keeps all.

    Args:
        layers: Layers of the model.
        channels: Channels of a layer.
    """

    def __init__(self, layers: int, channels: int) -> None:
        self.layers, self.channels, self.tokens = layers, channels, 0
        self.names = tuple(f"model.layers.{layer}.time_mixing" for layer in range(layers))
        self._columns: list[np.ndarray] = []

    def append(self, columns: np.ndarray) -> None:
        """Add tokens: float32 `[4, layers, tokens, channels]`, -log|a|, phase, query and key."""
        self._columns.append(columns)
        self.tokens += columns.shape[2]

    def _full(self, layer: int, token: int) -> np.ndarray:
        rate, angle = (self._since(what, layer, token) for what in (RATE, PHASE))
        query = self._read(QUERY, layer, token, token + 1)
        full = query * np.exp(-rate) * np.cos(angle) * self._read(KEY, layer, 0, token + 1)
        row: np.ndarray = full.sum(1).astype(np.float32)
        return row

    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        parts = [columns[what, layer] for columns in self._columns]
        return np.concatenate([np.zeros((0, self.channels), np.float32), *parts])[start:stop]
