"""The proof that converted weights compute the same: the source's logits compared with ours."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .sources.base import Reference

LENGTHS = (1, 2, 3, 17, 64, 256, 512)  # sequence lengths, in tokens
ONE_BY_ONE = 64  # at this length also token by token, as text is generated


@dataclass(frozen=True)
class Comparison:
    """The difference of two arrays of logits or hidden states."""

    name: str  # arrays compared
    largest: float  # largest absolute difference over the source's largest absolute value
    mean: float  # mean absolute difference over the same
    agreement: float  # share of positions with the same argmax

    def __str__(self) -> str:
        return f"{self.name:<24} {self.largest:>10.2e} {self.mean:>10.2e} {self.agreement:>10.2%}"


HEADING = f"{'':<24} {'max diff':>10} {'mean diff':>10} {'argmax':>10}"


@dataclass(frozen=True)
class Report:
    """The result of a verification."""

    logits: list[Comparison]  # one comparison per length
    layers: list[Comparison]  # one per layer, in order; empty if the logits are close enough
    tolerance: float  # largest difference that passes

    @property
    def passed(self) -> bool:
        return all(c.largest <= self.tolerance for c in self.logits)  # NaN never passes

    def __str__(self) -> str:
        layers = ["", "layer by layer:", *map(str, self.layers)] if self.layers else []
        lines = [HEADING, *map(str, self.logits), *layers]
        verdict = "within" if self.passed else "BEYOND"
        return "\n".join([*lines, f"{verdict} the tolerance of {self.tolerance:g}"])


def compare(name: str, ours: np.ndarray, source: np.ndarray) -> Comparison:
    error = np.abs(ours.astype(np.float64) - source)
    scale = max(float(np.abs(source).max()), 1e-30)
    same = (ours.argmax(-1) == source.argmax(-1)).mean()
    return Comparison(name, float(error.max()) / scale, float(error.mean()) / scale, float(same))


def random_tokens(vocab_size: int, length: int) -> np.ndarray:
    """Two sequences, the same every time."""
    return np.random.default_rng(length).integers(0, vocab_size, (2, length))


def logits(model: nn.Module, tokens: np.ndarray) -> np.ndarray:
    return np.array(model(mx.array(tokens)).astype(mx.float32))


def one_by_one(model: Any, tokens: np.ndarray) -> np.ndarray:
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    steps = [model(mx.array(tokens[:, i : i + 1]), cache) for i in range(tokens.shape[1])]
    return np.array(mx.concatenate(steps, axis=1).astype(mx.float32))


def hidden_states(model: Any, tokens: np.ndarray) -> list[np.ndarray]:
    states: list[mx.array] = []
    inner, layers = model.model, model.model.layers
    inner.layers = [Noting(layer, states) for layer in layers]
    try:
        model(mx.array(tokens))
    finally:
        inner.layers = layers
    return [np.array(state.astype(mx.float32)) for state in states]


class Noting:
    """A layer that adds its outputs to a list."""

    def __init__(self, layer: Any, states: list[mx.array]) -> None:
        self._layer, self._states = layer, states

    def __call__(self, *args: Any, **options: Any) -> mx.array:
        state: mx.array = self._layer(*args, **options)
        self._states.append(state)
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def verify(model: nn.Module, vocab_size: int, source: Reference, tolerance: float) -> Report:
    """Compare logits at each length on random tokens, and each layer at the first that fails."""
    results: list[Comparison] = []
    layers: list[Comparison] = []
    for length in LENGTHS:
        tokens = random_tokens(vocab_size, length)
        want = source.logits(tokens)
        results.append(compare(f"length {length}", logits(model, tokens), want))
        if length == ONE_BY_ONE:
            results.append(compare(f"length {length}, one by one", one_by_one(model, tokens), want))
        if not layers and not results[-1].largest <= tolerance:
            pairs = zip(hidden_states(model, tokens), source.hidden_states(tokens), strict=True)
            layers = [compare(f"layer {i}, length {length}", *p) for i, p in enumerate(pairs)]
    return Report(results, layers, tolerance)
