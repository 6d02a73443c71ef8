"""A long run with a trace of known decays, and questions to components of the page."""

import asyncio

import numpy as np
import pytest
from helpers.traces import trace_with
from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.page.updates import MAX_COLUMNS, Updates

LONG = 2 * MAX_COLUMNS + 500


@pytest.fixture
def asking():
    """Asks the functions that the server offers to a component."""
    return lambda server: lambda name, *request: asyncio.run(getattr(server, name)([*request]))


@pytest.fixture
def updates(engine):
    return Updates(engine.recorded)


def make_trace(rates, memory=1 << 20):
    """A trace of decays of each layer `[tokens, channels]`."""
    return trace_with(np.stack([rates, 0.1 * rates, rates, rates]), 64, memory, len(rates[0]))


@pytest.fixture
def run(engine):
    run = Run("tiny")
    run.trace = make_trace(np.random.default_rng(0).random((2, LONG, 3), np.float32))
    run.pieces += [Token(str(n), n, "answer", (("x", 0.5),)) for n in range(LONG)]
    run.finish()
    engine.recorded.put(run)
    return run
