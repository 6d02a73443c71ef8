"""Channels that reset themselves: those that forget at the task's marker and only there."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.nn as nn
import numpy as np

from mlx_gateloop.data.task import Samples
from mlx_gateloop.experiments.variants import title
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.watch import trace_of

TRACED = 32  # samples whose transitions are averaged
# |a| of a resetting channel is below FORGETS at the marker and above KEEPS elsewhere.
FORGETS, KEEPS = 0.1, 0.8


def mean_magnitudes(model: nn.Module, test: Samples, marker: int) -> dict[str, object] | None:
    """Return mean |a| of each layer and channel at the marker and elsewhere; None without any."""
    inputs = test.inputs[:TRACED]
    at = inputs == marker
    if not at.any() or at.all():
        return None
    traces = [trace_of(model, tokens) for tokens in inputs]
    if traces[0].tokens == 0:
        return None
    layers = range(traces[0].layers)
    magnitude = np.stack([[trace.magnitude(layer) for trace in traces] for layer in layers])
    at_marker, elsewhere = (magnitude[:, which].mean(1, np.float64) for which in (at, ~at))
    return {
        "at_marker": at_marker.round(4).tolist(),
        "elsewhere": elsewhere.round(4).tolist(),
        "resetting": ((at_marker < FORGETS) & (elsewhere > KEEPS)).sum(1).tolist(),
    }


def report_resets(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Count each model's runs with channels that forget at the marker and remember elsewhere."""
    rows = []
    for model, results in runs.items():
        traced = [result["magnitudes"]["resetting"] for result in results if result["magnitudes"]]
        if traced:
            channels = "; ".join(", ".join(map(str, layers)) for layers in traced)
            rows.append([title(model), f"{sum(map(any, traced))} of {len(traced)}", channels])
    if not rows:
        return []
    note = (
        f"Mean |a| over {TRACED} test samples: a resetting channel has below {FORGETS} at the "
        f"marker (Memory Horizon's reset) and above {KEEPS} elsewhere."
    )
    header = ["model", "runs with such channels", "channels by layer, each run"]
    return ["## Channels that reset", note, markdown_table(header, rows)]
