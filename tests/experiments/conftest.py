import shutil

import pytest
from helpers.experiments import tuned

from mlx_gateloop.experiments.run import run_experiment

MODELS = ("data_controlled", "fixed", "lru")
MADE = tuned(models=MODELS)


def leave_out_pictures(patch):
    """They take most of the time."""
    patch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: None)
    patch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)


@pytest.fixture
def without_pictures(monkeypatch):
    leave_out_pictures(monkeypatch)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A finished experiment: three trials and a run of each of three models."""
    out = tmp_path_factory.mktemp("made") / "out"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        run_experiment(MADE, out)
    return out


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")
