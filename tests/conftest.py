"""Settings that every test needs before anything else is imported."""

import gc
import os
import signal
import sys
from pathlib import Path

# Tests run side by side: set before NumPy and PyTorch are imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")

import pytest
from helpers.interpreter import TORCH
from hypothesis import settings

import mlx_gateloop  # noqa: F401  # before MLX, for its BLAS  # isort: split

# A shell starts background jobs (`make test &`) with Ctrl-C ignored, and every child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.append(TORCH)
# `app` and `convert` lie in the repository and in no wheel: they are found there, after all that is
# installed.
if (ROOT := str(Path(__file__).parent.parent)) not in sys.path:
    sys.path.append(ROOT)

# Machines are shared and MLX compiles on first use: how long an example takes proves nothing.
settings.register_profile("patient", parent=settings.get_profile("default"), deadline=None)
settings.load_profile("ci" if settings().derandomize else "patient")


gc.disable()  # until all is imported


def pytest_collection_finish():
    """Let collections of garbage pass over what is imported, which took half of the tests' time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Begin with the browser's tests: one process runs all, with one server that starts slowly."""
    items.sort(key=lambda item: "browser" not in item.path.parts)


@pytest.fixture
def without_pictures(monkeypatch):  # which take most of the time
    monkeypatch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: None)
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)


@pytest.fixture
def plotted(monkeypatch):
    """All plotted lines by label: x and y, or y alone."""
    import numpy as np
    from matplotlib.axes import Axes

    drawn, original = {}, Axes.plot

    def plot(axes, *line, **kwargs):
        drawn.setdefault(kwargs.get("label"), []).append(np.array(line[:2]))
        return original(axes, *line, **kwargs)

    monkeypatch.setattr(Axes, "plot", plot)
    return drawn
