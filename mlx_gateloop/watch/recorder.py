"""Recording of the state transitions that a model's caches see.

A layer reports to its cache (`TimeMixing`), so a recording follows the state, and concurrent
generations never mix.
"""

from collections import deque

import mlx.core as mx
import numpy as np

from mlx_gateloop.model.layers import Cache
from mlx_gateloop.model.lm import Model
from mlx_gateloop.ops import Transition
from mlx_gateloop.watch.angles import rate_and_phase
from mlx_gateloop.watch.measures import PHASE, RATE
from mlx_gateloop.watch.trace import Trace

Report = tuple[mx.array, mx.array, Transition]  # query, key and transition of a layer


class Recorder:
    """Collects the layers' reports of each forward pass, and moves them into a trace.

    After a forward pass call `step` and evaluate its arrays with the pass's other results; then
    `take` moves the oldest pass into the trace. Recording adds no MLX operation but casts.

    Args:
        trace: The trace to append to.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._reports: list[Report] = []
        self._steps: deque[list[Report]] = deque()

    def report(self, query: mx.array, key: mx.array, transition: Transition) -> None:
        """Receive one layer's report of a forward pass over one sequence: a cache's `record`."""
        self._reports.append((query.astype(mx.float32), key.astype(mx.float32), transition))

    def step(self) -> list[mx.array]:
        """End a forward pass; returns its arrays, not yet evaluated."""
        self._steps.append(self._reports)
        self._reports = []
        parts = [(q, k, a.first, a.second) for q, k, a in self._steps[-1]]
        return [array for part in parts for array in part if array is not None]

    def take(self) -> None:
        """Move the oldest forward pass into the trace."""
        reports = self._steps.popleft()
        shape = (4, len(reports), reports[0][0].shape[1], self.trace.channels)
        columns = np.zeros(shape, np.float32)
        for layer, (query, key, transition) in enumerate(reports):
            arrays = (transition.first, transition.second, query, key)
            for plane, array in enumerate(arrays):
                if array is not None:
                    # The channels of a head may share one: [B, L, H, 1] -> [B, L, H, K].
                    values = np.broadcast_to(np.asarray(array), query.shape)
                    columns[plane, layer] = values.reshape(shape[2:])
        form = reports[0][2].form  # all layers have the same
        columns[RATE], columns[PHASE] = rate_and_phase(form, columns[RATE], columns[PHASE])
        self.trace.append(columns)


def recording_cache(model: Model) -> tuple[list[Cache], Recorder]:
    """Make a cache of our model whose layers report to a recorder."""
    recorder = Recorder(Trace(len(model.layers), model.args.width))
    caches = model.make_cache()
    for cache in caches:
        cache.record = recorder.report
    return caches, recorder


def trace_of(model: Model, tokens: np.ndarray) -> Trace:
    """Record the state transitions of a model over one sequence, in one forward pass.

    Args:
        model: A `Model`.
        tokens: `[length]` integers, at least one.

    Returns:
        The trace, empty if the model has no state transitions.
    """
    caches, recorder = recording_cache(model)
    model(mx.array(tokens)[None], caches)
    if arrays := recorder.step():
        mx.eval(arrays)
        recorder.take()
    return recorder.trace
