"""The models of the Memory lab: their files, and what their card says of them."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from helpers.embedded import MODELS
from mlx_gateloop.app.generation.files import SUMS

from benchmarks.embedded_models import lab
from benchmarks.embedded_models.package import sums
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.io.models import load_model
from mlx_gateloop.train import TrainConfig
from mlx_gateloop.train.setup import num_parameters
from mlx_gateloop.train.task import evaluate_task

FOLDER = MODELS / "lab"
CARD = (FOLDER / "README.md").read_text("utf-8")
SPANS = [(0, 8), (9, 16), (17, 32), (33, 64)]


@pytest.fixture(scope="module", params=list(lab.SETTINGS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def directory(name):
    return FOLDER / name.replace("_", "-")


def test_every_file_is_the_one_that_was_made(directory):
    assert (directory / SUMS).read_text() == sums(directory)
    assert sum(file.stat().st_size for file in directory.iterdir()) < 100_000


def test_its_figures_are_those_of_the_test_samples(directory):
    task = PRESETS["memory-horizon"]["running_sum"].make_task()
    model, saved = load_model(directory), json.loads((directory / "test.json").read_text())
    score = evaluate_task(model, task.test, batch_size=100)
    assert score.accuracy == pytest.approx(saved["accuracy"], abs=2e-4)
    assert num_parameters(model) == saved["parameters"]
    right = np.bincount(task.test.span[score.right], minlength=65)
    assert np.abs(right - saved["right_by_span"]).sum() <= 4  # of 12,800, on another processor


def test_the_card_has_these_figures(directory, name):
    saved = json.loads((directory / "test.json").read_text())
    asked, right = (np.array(saved[f"{key}_by_span"]) for key in ("asked", "right"))
    column = list(lab.SETTINGS).index(name) + 1
    rows = [line.strip("| ").split(" | ") for line in CARD.splitlines()]
    cells = {row[0]: row[column] for row in rows if len(row) == 3}
    for first, last in SPANS:
        share = right[first : last + 1].sum() / asked[first : last + 1].sum()
        assert cells[f"spans {first} to {last}"] == f"{share:.3f}"
    assert cells["right, of 12,800 answers in 200 held-out sequences"] == f"{saved['accuracy']:.3f}"
    size = (directory / "model.safetensors").stat().st_size
    assert f"{size:,} bytes" in cells["stored in"]
    assert f"{saved['parameters']:,}" in CARD


def test_the_card_has_the_command_of_its_training(directory, name):
    words = lab.command(name, Path("runs/lab") / name)
    assert shlex.join(["gateloop", *words]) in CARD
    experiment = PRESETS["memory-horizon"]["running_sum"].changed_by(
        {"steps": lab.STEPS, **lab.SETTINGS[name]}, seeds=1, models=[name], draws=1
    )
    trained = TrainConfig.load(directory / "config.yaml")
    assert trained.to_dict() == experiment.config(experiment.make_task(), name, 0).to_dict()


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
