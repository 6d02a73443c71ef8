"""Channels that reset themselves: those that forget at the task's marker and only there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlx_gateloop.data.task import Samples
from mlx_gateloop.experiments.variants import title
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.lm import Model
from mlx_gateloop.watch import trace_of

TRACED = 32  # samples whose transitions are averaged
# |a| of a resetting channel is below FORGETS at the marker and above KEEPS elsewhere.
FORGETS, KEEPS = 0.1, 0.8


def mean_magnitudes(model: Model, test: Samples, marker: int) -> dict[str, object] | None:
    """Mean |a| of every layer and channel at the marker and elsewhere.

    "resetting" is the number of resetting channels in each layer.

    Args:
        model: the model.
        test: samples; the first `TRACED` are used.
        marker: the token at which to forget.

    Returns:
        The three lists by name; None if the model has no state transitions, or the samples have
        no marker or nothing else.
    """
    inputs = test.inputs[:TRACED]
    at = inputs == marker
    if not at.any() or at.all():
        return None
    traces = [trace_of(model, tokens) for tokens in inputs]
    if traces[0].tokens == 0:
        return None
    layers = range(traces[0].layers)
    magnitude = np.stack([[trace.magnitude(layer) for trace in traces] for layer in layers])
    at_marker, elsewhere = magnitude[:, at].mean(1), magnitude[:, ~at].mean(1)
    return {
        "at_marker": at_marker.round(4).tolist(),
        "elsewhere": elsewhere.round(4).tolist(),
        "resetting": ((at_marker < FORGETS) & (elsewhere > KEEPS)).sum(1).tolist(),
    }


def report_resets(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Report the channels that forget at the marker and remember elsewhere."""
    rows, found = [], []
    for model, results in runs.items():
        traced = [(r["seed"], r["magnitudes"]) for r in results if r["magnitudes"]]
        for seed, magnitudes in traced:
            at, elsewhere = (np.array(magnitudes[key]) for key in ("at_marker", "elsewhere"))
            layer, channel = np.unravel_index((elsewhere - at).argmax(), at.shape)
            most = f"{at[layer, channel]:.3f} / {elsewhere[layer, channel]:.3f} (layer {layer + 1})"
            means = f"{at.mean():.3f} / {elsewhere.mean():.3f}"
            resetting = ", ".join(map(str, magnitudes["resetting"]))
            rows.append([f"{title(model)}, seed {seed}", resetting, most, means])
        if traced:
            count = sum(any(m["resetting"]) for _, m in traced)
            found.append(f"{title(model)} {count} of {len(traced)}")
    if not rows:
        return []
    header = ["run", "resetting channels by layer", "greatest contrast", "mean of all"]
    note = (
        f"Mean magnitude of the state transition over {TRACED} test samples, channel by channel: "
        "at the marker (Memory Horizon's reset) / elsewhere. A resetting channel has below "
        f"{FORGETS} there and above {KEEPS} elsewhere."
    )
    counts = f"Runs with at least one resetting channel: {'; '.join(found)}."
    return ["## State transitions at the marker", note, counts, markdown_table(header, rows)]
