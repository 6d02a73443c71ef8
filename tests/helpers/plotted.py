"""The lines that a test draws."""

import matplotlib.axes
import numpy as np
import pytest


@pytest.fixture
def plotted(monkeypatch):
    """All plotted lines by label: x and y, or y alone."""
    drawn = {}
    original = matplotlib.axes.Axes.plot

    def plot(axes, *line, **kwargs):
        drawn.setdefault(kwargs.get("label"), []).append(np.array(line[:2]))
        return original(axes, *line, **kwargs)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", plot)
    return drawn
