"""A trace of any recurrent model, in constant memory however long the text is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from threading import RLock

import numpy as np

from mlx_gateloop.watch.angles import wrapped
from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.levels import Levels, Window
from mlx_gateloop.watch.measures import PHASE, RATE, Measures
from mlx_gateloop.watch.rows import full_row, held, shares_from
from mlx_gateloop.watch.sharing import framed, share

# Of the rows, to tokens as they are and to groups of 4, 16 and 64: with 256 MB, 100,000 tokens of
# a 12-layer model with 624 complex channels are in groups of at most 64.
SHARES = (2, 1, 1, 3)
SHOWN = 500  # tokens in a notebook


class EndlessTrace(Measures):
    """Transitions of every recurrent layer: recent tokens whole, older ones in groups.

    Of older tokens the sums of -log|a| over groups of 4, 16, 64 and more tokens are kept, so
    products of |a| between groups stay exact; inside of a group all tokens get the same share.
    Queries and keys are kept for the last tokens. One thread may append while others read.

    Args:
        layers: The recurrent layers.
        most_bytes: Memory for all of it.
        window: Tokens whose queries and keys are kept; fewer where a quarter of the memory does
            not hold them.

    Attributes:
        texts: Texts of the tokens, for a notebook, which shows a trace as `share` does.
    """

    def __init__(self, layers: Iterable[Layer], most_bytes: int, window: int) -> None:
        self._layers, self.tokens = list(layers), 0
        self._most_bytes, self._window = most_bytes, window
        self.texts: Sequence[str] = ()
        self._lock = RLock()

    @property
    def layers(self) -> int:  # type: ignore[override]
        return len(self._layers)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(layer.name for layer in self._layers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Short names of the layers' recurrences."""
        return tuple(layer.kind for layer in self._layers)

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each layer."""
        return tuple(layer.channels for layer in self._layers)

    @property
    def is_real(self) -> tuple[bool, ...]:
        """True for each layer whose transitions have no phase."""
        return tuple(layer.phase is None for layer in self._layers)

    @property
    def grouped(self) -> int:
        """Number of the first tokens that are kept in groups."""
        return min(self.tokens, self._layers[0].rate.grouped) if self.tokens else 0

    @property
    def nbytes(self) -> int:
        return total_bytes([self])

    @property
    def stores(self) -> list[Levels | Window]:
        """All that it takes memory for; branches share it."""
        return [store for layer in self._layers for store in layer.stores] if self.tokens else []

    def branch(self, tokens: int) -> "EndlessTrace":
        """Make another trace with the same first tokens.

        Both share their memory until the second of them goes on.
        """
        with self._lock:
            other = EndlessTrace(self._layers, self._most_bytes, self._window)
            other.tokens, other._lock = tokens, self._lock
            return other

    def _repr_html_(self) -> str:
        """Show the last tokens in a notebook."""
        with self._lock:
            texts = list(self.texts)[: self.tokens]
            texts += [f" {token}" for token in range(len(texts), self.tokens)]
            return framed(share(self, texts, start=max(0, self.tokens - SHOWN)))

    def append(self, columns: list[Columns]) -> None:
        """Add the same tokens to all layers."""
        with self._lock:
            if not self.tokens:
                self._allocate(columns)
            elif self._layers[0].rate.tokens != self.tokens:  # another branch has gone on
                self._layers = [layer.first(self.tokens) for layer in self._layers]
            for layer, new in zip(self._layers, columns, strict=True):
                layer.rate.append(new.rate.reshape(len(new.rate), -1))
                if layer.phase is not None and new.phase is not None:
                    layer.phase.append(new.phase.reshape(len(new.rate), -1))
                for name, window in layer.reads.items():
                    window.append(new.reads[name], len(new.rate))
            self.tokens += len(columns[0].rate)

    def without(self, name: str) -> None:
        """Leave a layer out, which is no longer recorded."""
        with self._lock:
            self._layers = [layer for layer in self._layers if layer.name != name]
            self.tokens = self.tokens if self._layers else 0

    def _allocate(self, columns: list[Columns]) -> None:
        reads = [{name: v.shape[1:] for name, v in new.reads.items()} for new in columns]
        read_bytes = 8 * sum(int(np.prod(s)) for layer in reads for s in layer.values())
        window = min(self._window, self._most_bytes // 4 // max(read_bytes, 1))
        widths = [int(np.prod(new.rate.shape[1:])) for new in columns]
        planes = [1 if new.phase is None else 2 for new in columns]
        row_bytes = sum(p * (4 * width + 8) for p, width in zip(planes, widths, strict=True))
        rows = (self._most_bytes - window * read_bytes) // row_bytes
        sizes = [max(rows * share // sum(SHARES) // 8 * 8, 8) for share in SHARES]
        window = min(window, sizes[0] // 2)  # so many are whole at any time
        self._layers = [replace(layer) for layer in self._layers]  # a branch may have the others
        for layer, new, width, shapes in zip(self._layers, columns, widths, reads, strict=True):
            layer.shape = new.rate.shape[1:]
            layer.rate = Levels(width, sizes)
            if new.phase is not None:
                layer.phase = Levels(width, sizes, wrapped)
            if window:
                layer.reads = {name: Window(window, shape) for name, shape in shapes.items()}

    def _read(self, what: int, layer: int, start: int, stop: int | None) -> np.ndarray:
        with self._lock:
            start, stop, _ = slice(start, stop).indices(self.tokens)
            return self._rows(what, self._at(layer), start, stop)

    def _stored(self, layer: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            of = self._at(layer)
            rows, tokens = of.rate.stored(start, stop)
            return of.of_states(rows), tokens

    def _at(self, layer: int) -> Layer:
        if not -self.layers <= layer < self.layers:
            known = "its layers are not watched; see `unwatched` of the recording"
            known = f"expected 0 to {self.layers - 1}" if self.layers else known
            raise IndexError(f"layer {layer}: {known}")
        return self._layers[layer]

    def _rows(self, what: int, layer: Layer, start: int, stop: int) -> np.ndarray:
        store = {RATE: layer.rate, PHASE: layer.phase}[what] if self.tokens else None
        if store is not None and start < stop:
            return layer.of_states(store.read(start, stop))
        return np.zeros((max(stop - start, 0), layer.channels), np.float32)

    def fading(self, token: int) -> np.ndarray:
        """Compute how much of the state at a token each earlier one still is.

            mean over layers of w_m / sqrt(w_0^2 + ... + w_n^2), w_m = |a_{m+1} ... a_n k_m| |v_m|

        It goes by what was written and not by distance alone; docs/forgetting.md compares it with
        what predictions lose without each token. Of mlx-lm's recurrences the value's norm is not
        recorded and counts as 1.

        Args:
            token: n, below `tokens`.

        Returns:
            Shares, float32 `[token + 1]` for m = 0 to n; NaN before the window of queries and keys.
        """
        row = np.full(token + 1, np.nan, np.float32)
        shares = []
        with self._lock:
            for layer in self._layers:
                rate, _, reads = self._near(layer, token)
                norm = held(rate, reads)
                shares.append(norm / max(np.sqrt((norm**2).sum()), np.finfo(np.float64).tiny))
        if near := min(map(len, shares), default=0):
            row[token + 1 - near :] = np.mean([share[-near:] for share in shares], 0)
        return row

    def fadings(self, start: int = 0) -> Iterator[np.ndarray]:
        """Yield `fading` of each token from one on, without those before it; all in one pass.

        Args:
            start: The first token.

        Yields:
            Shares, float32 `[n - start + 1]` for m = start to n; NaN before the window that the
            last token has.
        """
        with self._lock:
            near = [self._near(layer, self.tokens - 1) for layer in self._layers]
        first = self.tokens - min((len(rate) for rate, _, _ in near), default=0)
        known = max(first, start)
        rows = [
            shares_from(rate, reads, known - (self.tokens - len(rate))) for rate, _, reads in near
        ]
        for token in range(start, self.tokens):
            row = np.full(token - start + 1, np.nan, np.float32)
            if token >= known:
                row[known - start :] = np.mean([next(shares) for shares in rows], 0)
            yield row

    def _full(self, layer: int, token: int) -> np.ndarray:
        """Compute the full row of a token; NaN before the window of queries and keys."""
        with self._lock:
            of = self._at(layer)
            rate, phase, reads = self._near(of, token)
            row = np.full(token + 1, np.nan, np.float32)
            if len(rate):
                row[token + 1 - len(rate) :] = full_row(rate, phase, reads, of.erases)
            return row

    def _near(
        self, of: Layer, token: int
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
        """Return the rates, the phases and the reads of the tokens in the window of one."""
        reads = {name: window.read(token + 1) for name, window in of.reads.items()}
        near = min([self._window, token + 1, *map(len, reads.values())])
        if not reads and of.kind != "gated channels":
            near = 0
        reads = {name: values[len(values) - near :] for name, values in reads.items()}
        first = token + 1 - near
        shape = (near, *of.shape) if of.scale is None else (near, *of.scale.shape)
        rate, phase = (self._rows(what, of, first, token + 1) for what in (RATE, PHASE))
        rate, phase = (v.reshape(*shape, *[1] * (3 - len(shape))) for v in (rate, phase))
        return rate, None if of.phase is None else phase, reads


def total_bytes(traces: Iterable[EndlessTrace | None]) -> int:
    """Sum the memory of traces; what branches share counts once."""
    stores = {id(store): store.nbytes for trace in traces if trace for store in trace.stores}
    return sum(stores.values())
