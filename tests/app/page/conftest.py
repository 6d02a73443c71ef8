"""A long run with a trace of known decays, and questions to components of the page."""

import asyncio

import numpy as np
import pytest
from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.page.updates import MAX_COLUMNS, Updates

from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.trace import Trace

LONG = 2 * MAX_COLUMNS + 500


@pytest.fixture
def asking():
    """Asks the functions that the server offers to a component."""
    return lambda server: lambda name, *request: asyncio.run(getattr(server, name)([*request]))


@pytest.fixture
def updates(engine):
    return Updates(engine.recorded)


@pytest.fixture(scope="session")
def make_trace():
    """Traces of decays of each layer `[tokens, channels]`."""

    def make(rates, memory=1 << 20):
        trace = Trace([Layer(f"layers.{i}.x", "test") for i in range(len(rates))], memory, 64)
        reads = [rate[:, :, None] for rate in rates]
        trace.append(
            [Columns(r, 0.1 * r, {"query": q, "key": q}) for r, q in zip(rates, reads, strict=True)]
        )
        return trace

    return make


@pytest.fixture
def run(engine, make_trace):
    run = Run("tiny")
    run.trace = make_trace(np.random.default_rng(0).random((2, LONG, 3), np.float32))
    run.pieces += [Token(str(n), n, "answer", (("x", 0.5),)) for n in range(LONG)]
    run.finish()
    engine.recorded.put(run)
    return run
