import numpy as np
import pytest
from helpers.errors import refusal
from helpers.experiments import cells
from helpers.training import TINY_EXPERIMENT, interrupted
from mlx.utils import tree_flatten

from mlx_gateloop.cli import main
from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.experiments import ablations
from mlx_gateloop.experiments.ablations import ABLATIONS, OURS, run_ablations
from mlx_gateloop.experiments.measure import interval, mean_difference
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.results import read_runs

SOME = (OURS, "post-norm")
FOLLOWING = {"model.intermediate_size", "model.num_outputs"}


@pytest.fixture(autouse=True)
def two_ablations(monkeypatch, without_pictures):
    monkeypatch.setattr(ablations, "ABLATIONS", {name: ABLATIONS[name] for name in SOME})


def rows(out):
    return {row[0]: row[1:] for row in cells((out / "ablations.md").read_text())}


def test_every_ablation_can_be_trained_and_differs_from_ours_in_one_thing():
    preset = PRESETS["memory-horizon"]["small"].changed_by(TINY_EXPERIMENT)
    task = preset.make_task()
    ours = preset.config(task, "fixed", 0).to_dict() | {"task": task.fingerprint}
    for name, (_, changes) in ABLATIONS.items():
        changed = preset.changed_by(changes)
        other = changed.make_task()
        config = changed.config(other, "fixed", 0).to_dict() | {"task": other.fingerprint}
        assert len(changes) == (name != OURS)
        pairs = [dict(tree_flatten(each)) for each in (config, ours)]
        keys = (pairs[0].keys() | pairs[1].keys()) - FOLLOWING
        assert {key for key in keys if pairs[0].get(key) != pairs[1].get(key)} == {
            "task" if key.startswith("task.") else key for key in changes
        }


@pytest.mark.slow
def test_the_table_compares_each_change_with_ours_by_seed(tmp_path, capsys):
    out = tmp_path / "out"
    options = [f"--set={key}={value}" for key, value in TINY_EXPERIMENT.items()]
    assert main(["experiment", "ablations", "--out", str(out), "--seeds", "2", *options]) == 0
    table = rows(out)
    assert list(table)[-2:] == [ABLATIONS[name][0] for name in SOME]
    assert table[ABLATIONS[OURS][0]][1] == table[ABLATIONS[OURS][0]][3] == "-"
    ours, post = (
        np.array([[run["accuracy"] for run in runs] for runs in read_runs(out / name).values()])
        for name in (OURS, "post-norm")
    )  # of data-controlled and fixed transitions
    changes = {1: post[0] - ours[0], 3: post[1] - ours[1], 4: post[0] - post[1]}
    for column, by_seed in changes.items():
        expected = f"{by_seed.mean():+.3f}{interval(by_seed.tolist())}"
        assert table[ABLATIONS["post-norm"][0]][column] == expected
    assert mean_difference([]) == "-"  # where no seed has both
    text = (out / "ablations.md").read_text()
    assert capsys.readouterr().out == text + "\n"
    shared = ", ".join(f"{key}={value}" for key, value in TINY_EXPERIMENT.items())
    assert f"Memory Horizon's preset small with {shared}, with one change at a time:" in text


@pytest.mark.parametrize(("settings", "resume", "words"), [
    ({"model.norm_position": "post"}, False, "--set model.norm_position: the ablation post"),
    ({"weights": "runs/sum"}, False, "--set weights: the ablation "),
    (TINY_EXPERIMENT | {"optimizer.nothing": 1}, False, "unknown"),
    (TINY_EXPERIMENT, True, "no ablations to resume; start without --resume"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_anything(tmp_path, settings, resume, words):
    assert words in refusal(run_ablations, tmp_path / "out", settings, resume=resume)
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_keeps_what_is_finished_a_new_one_needs_a_folder(tmp_path):
    arguments = tmp_path / "out", TINY_EXPERIMENT, 1
    # in the third run, which is the second ablation's
    line = interrupted(SampleBatches, 15, run_ablations, *arguments)
    assert "continue with the same command and --resume" in line
    assert list(rows(arguments[0]))[-1] == ABLATIONS[OURS][0]
    assert "already holds something" in refusal(run_ablations, *arguments)
    first = (arguments[0] / OURS / "runs" / "fixed-0" / "log.jsonl").read_bytes()
    run_ablations(*arguments, resume=True)
    assert (arguments[0] / OURS / "runs" / "fixed-0" / "log.jsonl").read_bytes() == first
    assert list(rows(arguments[0]))[-2:] == [ABLATIONS[name][0] for name in SOME]
