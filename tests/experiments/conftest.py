import pytest
from helpers.plotted import plotted  # noqa: F401


@pytest.fixture
def without_pictures(monkeypatch):
    """They take most of the time."""
    monkeypatch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: None)
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)
