"""The trace of a sequence: transitions, and how long the state keeps each token."""

import html
import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from mlx_gateloop.io.files import replacing
from mlx_gateloop.watch.attention_rows import full_row, shares_from, state_norms, sums_from
from mlx_gateloop.watch.sharing import HIGH, LOW, share
from mlx_gateloop.watch.storage import Storage

KEPT, SHARE = 0.5, 0.25  # share of a state, and of channels, in the definition of a reset
SHOWN = 500  # tokens in a notebook


class Trace(Storage):
    """The transitions of a sequence in every recurrent layer, and measures of its memory.

    Attributes:
        texts: Token texts for the display in a notebook.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> trace = gl.watch.trace_of(model, [1, 2, 3])
        >>> trace.magnitude(0).shape, trace.retention(2).shape
        ((3, 8), (3,))
    """

    texts: Sequence[str] = ()

    def branch(self, tokens: int) -> "Trace":
        """Make a trace with the same first tokens; both share memory until both have continued."""
        with self._lock:
            other = Trace(self._layers, self._max_bytes, self._window)
            other.tokens, other._lock = tokens, self._lock
            return other

    def _repr_html_(self) -> str:
        """Show the last tokens in a notebook."""
        with self._lock:
            texts = list(self.texts)[: self.tokens]
            texts += [f" {token}" for token in range(len(texts), self.tokens)]
            page = html.escape(share(self, texts, start=max(0, self.tokens - SHOWN)))
        style = "width:100%;height:720px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    def magnitude(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return |a|, float32 `[tokens, channels]`."""
        return np.exp(-self.rate(layer, start, stop))

    def columns(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Encode magnitude and phase in 8 bits for display, uint8 `[tokens, 2, channels]`.

        0 to 255 stand for log(-log|a|) from log(LOW) to log(HIGH), and for phases from -pi to pi.
        """
        stop = self.tokens if stop is None else stop
        rate = np.clip(self.rate(layer, start, stop), LOW, HIGH)
        level = np.log(rate / LOW) / np.log(HIGH / LOW)
        turns = self.phase(layer, start, stop) / (2 * np.pi) + 0.5
        return np.rint(np.stack([level, turns], 1) * 255).astype(np.uint8)

    def averages(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Average |a| over channels, float32 `[tokens, layers]`; the paper averages layers too."""
        start, stop = self._range(start, stop)
        means = [self.magnitude(n, start, stop).mean(1)[:, None] for n in range(self.layers)]
        return np.concatenate([np.empty((max(stop - start, 0), 0), np.float32), *means], 1)

    def resets(self, stop: int | None = None) -> np.ndarray:
        """Find resets: tokens at which many channels forget that usually remember.

        A channel remembers if the geometric mean of its |a| is at least `KEPT`; it forgets at a
        token if |a| is below that. At a reset, at least the share `SHARE` of the remembering
        channels of all layers forget. See docs/resets.md.

        Args:
            stop: Number of tokens to use; None means all.

        Returns:
            Indices of tokens, ascending.
        """
        _, tokens = self._range(0, stop)  # read once: another thread may append
        forgets, remembering = np.zeros(tokens, np.int64), 0
        for layer in range(self.layers if tokens else 0):
            rows, counts = self._stored(layer, 0, tokens)
            kept = np.isfinite(rows)  # but where documents begin
            total = np.sum(rows, 0, np.float64, where=kept)
            remembers = kept.any(0) & (total <= -np.log(KEPT) * (kept * counts[:, None]).sum(0))
            each = rows[:, remembers] > -np.log(KEPT) * counts[:, None]
            forgets += np.repeat(each.sum(1), counts)
            remembering += int(remembers.sum())
        return np.flatnonzero(forgets >= max(1, SHARE * remembering))

    def remembered(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute how much of each earlier token remains in the state at this one.

        magnitude  mean over channels of |a_{m+1}| ... |a_n|
        attention  sum over channels of Re(q_n a_{m+1} ... a_n k_m), the surrogate attention;
                   see docs/watching.md for other recurrences

        Args:
            layer: The layer.
            token: n, below `tokens`.

        Returns:
            Both, float32 `[token + 1]`, for m = 0 to n.
        """
        since, known = self._since_stored(layer, token)
        full = np.full(token + 1, np.nan, np.float32)  # before the window of queries and keys
        with self._lock:
            of = self._at(layer)
            rate, phase, reads = self._near(of, token)
            if len(rate):
                full[token + 1 - len(rate) :] = full_row(rate, phase, reads, of.erases)
        return _between(np.exp(-since).mean(1), known), full

    def best(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the channel that keeps the largest share |a_{m+1}| ... |a_n| of each earlier token.

        Returns:
            The shares float32 and the channels int64, `[token + 1]` each, for m = 0 to n.
        """
        since, known = self._since_stored(layer, token)
        channels = since.argmin(1)[np.searchsorted(known, np.arange(token + 1))]
        return _between(np.exp(-since.min(1)), known), channels

    def _since_stored(self, layer: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Sum rates over m+1..n for the last token m of each stored row; also return these."""
        if not 0 <= token < self.tokens:
            raise IndexError(f"token {token}: expected 0 to {self.tokens - 1}")
        rows, tokens = self._stored(layer, 1, token + 1)
        return sums_from(rows), np.append(0, tokens.cumsum())

    def left(self, states: Sequence[np.ndarray]) -> float:
        """Compute the share that is left of the states before the first token, such as tuned ones.

            mean over layers with a state of |a_0 ... a_n h| / |h|

        Args:
            states: h of each layer of our model, float32 `[1, P, C]` or `[1, P, H, K, V]`.

        Returns:
            A number from 0 to 1; 0 without a state.
        """
        shares = []
        for layer, state in enumerate(states):
            rates = self._stored(layer, 0, self.tokens)[0].sum(0, dtype=np.float64)
            squares = np.square(state[0], dtype=np.float64).sum(0).reshape(len(rates), -1).sum(1)
            if squares.any():
                shares.append(np.sqrt((squares * np.exp(-2 * rates)).sum() / squares.sum()))
        return float(np.mean(shares or [0]))

    def retention(self, token: int) -> np.ndarray:
        """Compute the share of each earlier token in the state at a token.

            mean over layers of w_m / sqrt(w_0^2 + ... + w_n^2), w_m = |a_{m+1} ... a_n k_m| |v_m|

        The sum is over the tokens that the window of queries and keys holds. The share
        depends on what each token wrote, not only on its distance; docs/forgetting.md compares
        it with the loss of predictions without each token. For mlx-lm's recurrences, the norm of
        the value is unknown and counts as 1.

        Args:
            token: n, below `tokens`.

        Returns:
            Shares, float32 `[token + 1]` for m = 0 to n; NaN before the window of queries and keys.
        """
        if not 0 <= token < self.tokens:
            raise IndexError(f"token {token}: expected 0 to {self.tokens - 1}")
        row = np.full(token + 1, np.nan, np.float32)
        shares = []
        with self._lock:
            for layer in self._layers:
                rate, _, reads = self._near(layer, token)
                norm = state_norms(rate, reads)
                shares.append(norm / max(np.sqrt((norm**2).sum()), np.finfo(np.float64).tiny))
        if near := min(map(len, shares), default=0):
            row[token + 1 - near :] = np.mean([share[-near:] for share in shares], 0)
        return row

    def retentions(self, start: int = 0) -> Iterator[np.ndarray]:
        """Yield `retention` at each token from `start`, for the tokens from `start`, in one pass.

        Args:
            start: First token; below 0, counted from the end.

        Yields:
            Shares, float32 `[n - start + 1]` for m = start to n; NaN before the window of the
            last token.
        """
        start, _ = self._range(start, None)
        with self._lock:
            near = [self._near(layer, self.tokens - 1) for layer in self._layers]
        first = self.tokens - min((len(rate) for rate, _, _ in near), default=0)
        known = max(first, start)
        before = known - self.tokens
        rows = [shares_from(rate, reads, before + len(rate)) for rate, _, reads in near]
        for token in range(start, self.tokens):
            row = np.full(token - start + 1, np.nan, np.float32)
            if token >= known:
                row[known - start :] = np.mean([next(shares) for shares in rows], 0)
            yield row

    def save(
        self, path: str | os.PathLike[str] | BytesIO, texts: Sequence[str] = (), start: int = 0
    ) -> None:
        """Write an .npz file: magnitude and phase `[layers, tokens, channels]`, averages, texts.

        If layers have different numbers of channels, each has its own "magnitude.0"
        `[tokens, channels]`.

        Args:
            path: Path of the file, or a file in memory.
            texts: Token texts.
            start: First token to write.
        """
        stop, layers = self.tokens, range(self.layers)
        each = {
            "magnitude": [self.magnitude(layer, start, stop) for layer in layers],
            "phase": [self.phase(layer, start, stop) for layer in layers],
        }
        arrays: dict[str, Any] = {
            "averages": self.averages(start, stop),
            "texts": np.array(list(texts), dtype=np.str_),
            "names": np.array(self.names, dtype=np.str_),
        }
        for name, values in each.items():
            if len({value.shape for value in values}) == 1:
                arrays[name] = np.stack(values)
            else:
                arrays |= {f"{name}.{layer}": value for layer, value in enumerate(values)}
        if isinstance(path, BytesIO):
            np.savez(path, **arrays)
            return
        # An open file, because savez appends .npz to names.
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, **arrays)


def _between(shares: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Interpolate the shares of all tokens geometrically between the stored ones."""
    logs = np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    return np.exp(np.interp(np.arange(known[-1] + 1), known, logs)).astype(np.float32)
