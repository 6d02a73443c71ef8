"""Measures of memory on the state transitions of a sequence."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mlx_gateloop.io.files import replacing

# The range of the decay rate -log|a| that `Trace.columns` encodes in 8 bits, on a log scale:
# half-lives from 0.04 to 700,000 tokens. |a| itself in 8 bits would lose every long memory.
LOW, HIGH = 1e-6, 16.0
KEPT, SHARE = 0.5, 0.25  # of a state and of channels: the definition of a reset
CHUNK = 4096  # tokens that are looked at together
RATE, PHASE, QUERY, KEY = range(4)


class Measures(ABC):
    """A sequence's transitions in each layer, however they are stored, and what follows from them.

    A storage gives `layers`, `names` (paths of the layers in their model), `tokens` and `_read`.
    """

    layers: int
    tokens: int
    names: tuple[str, ...]

    @abstractmethod
    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        """Return RATE or PHASE of a layer, float32 `[tokens, channels]`."""

    def _stored(self, layer: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of RATE as they are stored, and the tokens that each stands for."""
        rates = self._read(RATE, layer, start, stop)
        return rates, np.ones(len(rates), np.int64)

    @abstractmethod
    def _full(self, layer: int, token: int) -> np.ndarray:
        """Return the surrogate attention of a token, float32 `[token + 1]`."""

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
        averages = np.empty((max(stop - start, 0), self.layers), np.float32)
        for at in range(start, stop, CHUNK):
            until = min(at + CHUNK, stop)
            for layer in range(self.layers):
                part = self.magnitude(layer, at, until).mean(1)
                averages[at - start : until - start, layer] = part
        return averages

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
        for layer in range(self.layers if tokens else 0):
            rows, counts = self._stored(layer, 0, tokens)
            remembers = rows.sum(0, dtype=np.float64) <= -np.log(KEPT) * tokens
            each = rows[:, remembers] > -np.log(KEPT) * counts[:, None]
            forgets += np.repeat(each.sum(1), counts)
            remembering += int(remembers.sum())
        return np.flatnonzero(forgets >= max(1, SHARE * remembering))

    def remembered(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute the share of each earlier token that is left in the state at this one.

        magnitude  mean over channels of |a_{m+1}| ... |a_n|
        attention  sum over channels of Re(q_n a_{m+1} ... a_n k_m), the surrogate attention;
                   docs/watching.md says what it is for other recurrences

        Args:
            layer: The layer.
            token: n, below `tokens`.

        Returns:
            Both, float32 `[token + 1]`, for m = 0 to n.
        """
        since, held = self._since_stored(layer, token)
        return _between(np.exp(-since).mean(1), held), self._full(layer, token)

    def best(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the channel that holds most of each earlier token at this one; see `left`.

        Returns:
            The shares float32 and the channels int64, `[token + 1]` each, for m = 0 to n.
        """
        since, held = self._since_stored(layer, token)
        channels = since.argmin(1)[np.searchsorted(held, np.arange(token + 1))]
        return _between(np.exp(-since.min(1)), held), channels

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
        return np.concatenate([sums, np.zeros((1, values.shape[1]))])

    def _since_stored(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Sum as `_since`, for the last token m of each stored row; and return these tokens."""
        rows, tokens = self._stored(layer, 1, token + 1)
        since = rows[::-1].astype(np.float64).cumsum(0)[::-1]
        since = np.concatenate([since, np.zeros((1, rows.shape[1]))])
        return since, np.append(0, tokens.cumsum())

    def save(self, path: str | os.PathLike[str], texts: Sequence[str] = (), start: int = 0) -> None:
        """Write an .npz file: magnitude and phase `[layers, tokens, channels]`, averages, texts.

        Where layers differ in channels, each has its own arrays "magnitude.0" `[tokens, channels]`.

        Args:
            path: The file.
            texts: The tokens' texts.
            start: The first token to write.
        """
        stop, layers = self.tokens, range(self.layers)
        each = {
            "magnitude": [self.magnitude(layer, start, stop) for layer in layers],
            "phase": [self.phase(layer, start, stop) for layer in layers],
        }
        arrays = {
            "averages": self.averages(start, stop),
            "texts": np.array(list(texts), dtype=np.str_),
            "names": np.array(self.names, dtype=np.str_),
        }
        for name, values in each.items():
            if len({value.shape for value in values}) == 1:
                arrays[name] = np.stack(values)
            else:
                arrays |= {f"{name}.{layer}": value for layer, value in enumerate(values)}
        # An open file, as savez appends .npz to other names.
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


def _between(shares: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Fill in the shares of all tokens to the last of those held, by the same factor a token."""
    logs = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    every: np.ndarray = np.exp(np.interp(np.arange(held[-1] + 1), held, logs)).astype(np.float32)
    return every
