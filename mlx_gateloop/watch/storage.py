"""Storage of a recurrent model's transitions in constant memory."""

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from threading import RLock

import numpy as np

from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.pyramid import Pyramid, Window, wrapped

# Shares of the rows for single tokens and groups of 4, 16 and 64. With 256 MB, 12 layers and 624
# complex channels, 100,000 tokens need groups of at most 64.
SHARES = (2, 1, 1, 3)


class Storage:
    """Transitions of every recurrent layer: recent tokens exactly, older ones in groups.

    Groups of 4, 16, 64 and more older tokens store the sum of -log|a|, so products of |a| between
    groups stay exact; inside a group, all tokens get the same share. The last tokens have queries
    and keys. One thread may append while others read.

    Args:
        layers: The recurrent layers.
        max_bytes: Memory limit.
        window: Number of tokens with queries and keys, limited to a quarter of the memory.
    """

    def __init__(self, layers: Iterable[Layer], max_bytes: int, window: int) -> None:
        self._layers, self.tokens = list(layers), 0
        self._max_bytes, self._window = max_bytes, window
        self._lock = RLock()

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def names(self) -> tuple[str, ...]:
        """Paths of the layers in their model."""
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
        """True for each layer with transitions without phase."""
        return tuple(layer.phase is None for layer in self._layers)

    @property
    def grouped(self) -> int:
        """Number of the first tokens that are stored in groups."""
        return min(self.tokens, self._layers[0].rate.grouped) if self.tokens else 0

    @property
    def nbytes(self) -> int:
        return total_bytes([self])

    @property
    def stores(self) -> list[Pyramid | Window]:
        """The stores of all layers; branches share them."""
        return [store for layer in self._layers for store in layer.stores] if self.tokens else []

    def append(self, columns: list[Columns]) -> None:
        """Add the same tokens to all layers."""
        with self._lock:
            if not self.tokens:
                self._allocate(columns)
            elif self._layers[0].rate.tokens != self.tokens:  # another branch has continued
                self._layers = [layer.first(self.tokens) for layer in self._layers]
            for layer, new in zip(self._layers, columns, strict=True):
                layer.rate.append(new.rate.reshape(len(new.rate), -1))
                if layer.phase is not None and new.phase is not None:
                    layer.phase.append(new.phase.reshape(len(new.rate), -1))
                for name, window in layer.reads.items():
                    window.append(new.reads[name], len(new.rate))
            self.tokens += len(columns[0].rate)

    def without(self, name: str) -> None:
        """Remove a layer that is no longer recorded."""
        with self._lock:
            self._layers = [layer for layer in self._layers if layer.name != name]
            self.tokens = self.tokens if self._layers else 0

    def _allocate(self, columns: list[Columns]) -> None:
        read_bytes = 8 * sum(prod(v.shape[1:]) for new in columns for v in new.reads.values())
        window = min(self._window, self._max_bytes // 4 // max(read_bytes, 1))
        planes = [plane for new in columns for plane in (new.rate, new.phase) if plane is not None]
        row_bytes = sum(4 * prod(plane.shape[1:]) + 8 for plane in planes)
        rows = (self._max_bytes - window * read_bytes) // row_bytes
        sizes = [max(rows * share // sum(SHARES) // 8 * 8, 8) for share in SHARES]
        window = min(window, sizes[0] // 2)  # this many are never in groups
        self._layers = [replace(layer) for layer in self._layers]  # a branch may use the old ones
        for layer, new in zip(self._layers, columns, strict=True):
            layer.shape = new.rate.shape[1:]
            layer.rate = Pyramid(prod(layer.shape), sizes)
            if new.phase is not None:
                layer.phase = Pyramid(prod(layer.shape), sizes, wrapped)
            if window:
                layer.reads = {n: Window(window, v.shape[1:]) for n, v in new.reads.items()}

    def rate(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return -log|a|, float32 `[tokens, channels]`."""
        with self._lock:
            of = self._at(layer)
            return _rows(of, of.rate if self.tokens else None, *self._range(start, stop))

    def phase(self, layer: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return arg a in (-pi, pi], float32 `[tokens, channels]`."""
        with self._lock:
            of = self._at(layer)
            return _rows(of, of.phase, *self._range(start, stop))

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        start, stop, _ = slice(start, stop).indices(self.tokens)
        return start, stop

    def _stored(self, layer: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored sums of rates, and the number of tokens of each."""
        with self._lock:
            of = self._at(layer)
            rows, tokens = of.rate.stored(start, stop)
            return of.of_states(rows), tokens

    def _at(self, layer: int) -> Layer:
        if not -self.layers <= layer < self.layers:
            known = "no layer is watched; see `unwatched` of the recording"
            known = f"expected 0 to {self.layers - 1}" if self.layers else known
            raise IndexError(f"layer {layer}: {known}")
        return self._layers[layer]

    def _near(
        self, of: Layer, token: int
    ) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
        """Return the rates, phases and reads in the window that ends with a token."""
        reads = {name: window.read(token + 1) for name, window in of.reads.items()}
        near = min([self._window, token + 1, *map(len, reads.values())])
        if not reads and of.kind != "gated channels":
            near = 0
        reads = {name: values[len(values) - near :] for name, values in reads.items()}
        first = token + 1 - near
        shape = (near, *of.shape) if of.scale is None else (near, *of.scale.shape)
        rate, phase = (
            _rows(of, store if self.tokens else None, first, token + 1).reshape(
                *shape, *[1] * (3 - len(shape))
            )
            for store in (of.rate, of.phase)
        )
        return rate, None if of.phase is None else phase, reads


def _rows(layer: Layer, store: Pyramid | None, start: int, stop: int) -> np.ndarray:
    if store is not None and start < stop:
        return layer.of_states(store.read(start, stop))
    return np.zeros((max(stop - start, 0), layer.channels), np.float32)


def total_bytes(traces: Iterable[Storage | None]) -> int:
    """Sum the memory of traces in bytes; shared memory counts once."""
    stores = {id(store): store.nbytes for trace in traces if trace for store in trace.stores}
    return sum(stores.values())
