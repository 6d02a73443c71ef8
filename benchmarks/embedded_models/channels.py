"""Channels of a model that follow the structure of code, found by correlation.

`python -m benchmarks.embedded_models.channels app/embedded_models/code` reads the beginnings of the
held-out files and prints Markdown: for each feature of `structure`, the channels with the magnitude
|a|, and with the state, that correlate most with it. They are chosen on every other file. The table
has their correlation on the remaining files, and that of the best channels of an untrained model of
the same size, chosen in the same way.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mlx_gateloop.io.models import load
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model
from mlx_gateloop.watch import recording

from . import library
from .arguments import errors_in_one_line, paths
from .structure import FEATURES, structure

TOKENS = 1500  # read per file
BEST = 2  # channels of each feature and quantity
SEED = 0  # for the untrained model
QUANTITIES = ("magnitude", "state")


class Found(NamedTuple):
    """A channel and its correlations with a feature."""

    feature: str
    quantity: str
    layer: int
    channel: int
    chosen_by: float
    elsewhere: float


def quantities(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Return |a| and the state's real part after each token, `[2, layers, tokens, channels]`."""
    caches, states = model.make_cache(), []
    with recording(model, window=0) as recorder:
        for token in tokens.tolist():
            model(mx.array([[token]]), caches)
            states.append([np.array(cache[0])[0, 0].reshape(-1) for cache in caches])
    magnitude = [recorder.trace.magnitude(layer) for layer in range(len(caches))]
    return np.stack([np.stack(magnitude), np.swapaxes(np.array(states), 0, 1)])


def read(model: Model, tokenizer: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a file's `quantities`, and its features `[FEATURES, tokens]` at each token's end."""
    encoded = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    ends = np.array([end for _, end in encoded.offsets[:TOKENS]])
    return quantities(model, np.array(encoded.ids[:TOKENS])), structure(text)[:, ends - 1]


def correlations(values: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Compute Pearson's correlation of each channel with each feature, 0 where one never changes.

    `[..., tokens, channels]` and `[features, tokens]` give `[features, ..., channels]`.
    """
    values = values - values.mean(-2, keepdims=True)
    features = features - features.mean(-1, keepdims=True)
    products: np.ndarray = np.einsum("...tc,ft->f...c", values, features)
    norms = np.multiply.outer(np.linalg.norm(features, axis=-1), np.linalg.norm(values, axis=-2))
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def best(chosen_by: np.ndarray, elsewhere: np.ndarray) -> Iterator[Found]:
    """Yield the channels of the largest correlations `[features, quantities, layers, channels]`."""
    for f, feature in enumerate(FEATURES):
        for q, quantity in enumerate(QUANTITIES):
            order = np.argsort(-np.abs(chosen_by[f, q]), axis=None, kind="stable")[:BEST]
            for index in order:
                layer, channel = np.unravel_index(index, chosen_by[f, q].shape)
                at = f, q, layer, channel
                correlation = float(chosen_by[at]), float(elsewhere[at])
                yield Found(feature, quantity, int(layer), int(channel), *correlation)


def find(model: Model, tokenizer: Any, files: Sequence[str]) -> list[Found]:
    """Find the channels of a model; every other file chooses, the rest test."""
    halves = []
    for half in (files[::2], files[1::2]):
        values, features = zip(*(read(model, tokenizer, file) for file in half), strict=True)
        halves.append(correlations(np.concatenate(values, 2), np.concatenate(features, 1)))
    return list(best(*halves))


def report(directory: Path) -> str:
    """Tabulate the channels of a model, beside those of one without training."""
    model, tokenizer = load(directory)
    files = library.unread(directory)
    mx.random.seed(SEED)
    untrained = find(Model(model.args), tokenizer, files)
    rows = [
        [
            found.feature,
            found.quantity,
            str(found.layer + 1),
            str(found.channel),
            f"{found.chosen_by:+.2f}",
            f"{found.elsewhere:+.2f}",
            f"{chance.elsewhere:+.2f}",
        ]
        for found, chance in zip(find(model, tokenizer, files), untrained, strict=True)
    ]
    header = ("feature", "quantity", "layer", "channel", "correlation")
    return markdown_table([*header, "on other files", "without training"], rows)


if __name__ == "__main__":
    with errors_in_one_line():
        print(report(*paths(__doc__, "model")))
