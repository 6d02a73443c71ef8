"""The models of the Memory lab: their files, and what their card says of them."""

import json

import numpy as np
import pytest
from helpers.embedded import MODELS

from benchmarks.embedded_models import lab
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.io.models import load_model
from mlx_gateloop.train.setup import num_parameters
from mlx_gateloop.train.task import evaluate_task


@pytest.fixture(params=lab.SETTINGS)
def directory(request):
    return MODELS / "lab" / request.param.replace("_", "-")


def test_its_figures_are_those_of_the_test_samples(directory):
    task = PRESETS["memory-horizon"]["running_sum"].make_task()
    model, saved = load_model(directory), json.loads((directory / "test.json").read_text())
    score = evaluate_task(model, task.test, batch_size=100)
    assert score.accuracy == pytest.approx(saved["accuracy"], abs=2e-4)
    assert num_parameters(model) == saved["parameters"]
    right = np.bincount(task.test.span[score.right], minlength=65)
    assert np.abs(right - saved["right_by_span"]).sum() <= 4  # 12,800 answers; processors differ


def test_a_run_is_packaged_whole(tmp_path, directory):
    run = tmp_path / "run"
    run.mkdir()
    for file in (*lab.KEPT, "log.jsonl"):
        (run / file).write_bytes((directory / file).read_bytes())
    saved = json.loads((directory / "test.json").read_text())
    (run / "test.json").write_text(json.dumps(saved | {"magnitudes": [[1.0]], "seconds": 2.5}))
    lab.embed(run, tmp_path / "made")
    made = {file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()}
    assert made == {file.name: file.read_bytes() for file in directory.iterdir()}
    assert sum(map(len, made.values())) < 100_000
