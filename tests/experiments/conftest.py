import shutil
from unittest.mock import patch

import pytest
from helpers.experiments import tuned

from mlx_gateloop.experiments import report
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.train import loop

MODELS = ("data_controlled", "fixed", "lru")
MADE = tuned(models=MODELS)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A finished experiment: three trials and a run of each of three models."""
    out = tmp_path_factory.mktemp("made") / "out"
    with patch.object(report, "_draw"), patch.object(loop, "training_curves"):  # which take long
        run_experiment(MADE, out)
    return out


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")
