"""Experiments that were interrupted, killed, moved, damaged or begun by something else."""

import json
import shutil
from pathlib import Path

import pytest
from experiments.conftest import MADE, MODELS
from helpers.errors import refusal
from helpers.experiments import names, raw_results, results, tiny, tuned
from helpers.training import LAST, interrupted, press_ctrl_c, same_arrays
from helpers.training import TINY_EXPERIMENT as TINY

from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.results import read_runs
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.runs import Run
from mlx_gateloop.experiments.variants import VARIANTS
from mlx_gateloop.io.files import locked
from mlx_gateloop.train import Interrupted

pytestmark = pytest.mark.usefixtures("without_pictures")


def interrupt(number, experiment, out):
    """Press Ctrl-C in the batch of that number, of all runs."""
    line = interrupted(SampleBatches, number, run_experiment, experiment, out, out.exists())
    assert "continue with the same command" in line


def test_a_resumed_experiment_is_the_uninterrupted_one(tmp_path):
    """After Ctrl-C, and after a kill, which leaves no record."""
    run_experiment(tiny(), tmp_path / "straight")
    out = tmp_path / "parts"
    for number, steps in ((9, 3), (2, 5)):  # the third and fifth step of the second run
        interrupt(number, tiny(), out)
        found = [(r["model"], r["steps"]) for r in results(out)]
        assert found == [("data_controlled", 6), ("fixed", steps)]
    assert "**of 6**" in (out / "results.md").read_text()
    before = (out / "runs" / "data_controlled-0" / "log.jsonl").read_text()
    (out / "runs" / "fixed-0" / "test.json").unlink()  # as after a kill
    run_experiment(tiny(), out, resume=True)
    assert results(out) == results(tmp_path / "straight")
    assert (out / "runs" / "data_controlled-0" / "log.jsonl").read_text() == before
    for name in names(out / "runs"):
        last = Path("runs", name, LAST)
        same_arrays(out / last, tmp_path / "straight" / last)


@pytest.mark.slow
def test_interrupted_trials_go_on_and_end_as_undisturbed_ones(made, tmp_path):
    out = tmp_path / "parts"
    for number in (7, 12):  # in a trial, and in the last step of one
        interrupt(number, MADE, out)
    run_experiment(MADE, out, resume=True)
    files = sorted(path.relative_to(out) for path in out.rglob("last.safetensors"))
    assert len(files) == 12
    for file in files:
        same_arrays(out / file, made / file)


def test_ctrl_c_in_the_last_step_of_a_run(tmp_path, monkeypatch):
    """It ends the experiment before its next run, and has no effect in the last one."""
    experiment, out = tiny(seeds=1), tmp_path / "out"
    interrupt(6, experiment, out)
    assert [(r["steps"], r["finished"]) for r in results(out)] == [(6, True)]
    press_ctrl_c(monkeypatch, SampleBatches, 6)
    run_experiment(experiment, out, resume=True)
    assert [(r["steps"], r["finished"]) for r in results(out)] == 2 * [(6, True)]


def test_a_run_that_fails_leaves_the_report_of_the_others(tmp_path, monkeypatch):
    original, experiment, out = Run.go, tiny(seeds=1, steps=3), tmp_path / "out"
    for error, words in (
        (KeyboardInterrupt(), r"saved in .*out; continue with the same command"),
        (InputError("the validation loss is not finite"), "not finite"),
    ):

        def go(run, error=error):
            if run.model == "fixed":
                raise error
            return original(run)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "go", go)
            with pytest.raises((Interrupted, InputError), match=words):
                run_experiment(experiment, out, resume=out.exists())
        assert [r["model"] for r in results(out)] == ["data_controlled"]
    run_experiment(experiment, out, resume=True)
    assert [r["model"] for r in results(out)] == ["data_controlled", "fixed"]


def test_the_record_of_a_run_that_another_process_trains_stays(out):
    run = Run(MADE, "fixed", 0, 0, out / "runs" / "fixed-0")
    before = run.record.read_text()
    with locked(run.directory), pytest.raises(InputError, match="another process is writing"):
        run.go()
    assert run.record.read_text() == before


@pytest.mark.slow
def test_side_by_side_is_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    for jobs in (1, 3):
        run_experiment(tiny(seeds=1).changed_by(trials=1, draws=2), tmp_path / str(jobs), jobs=jobs)
    assert results(tmp_path / "1") == results(tmp_path / "3")
    for name in names(tmp_path / "1" / "runs"):
        last = Path("runs", name, LAST)
        same_arrays(tmp_path / "1" / last, tmp_path / "3" / last)


def test_a_text_may_move_but_not_change(tmp_path):
    def text(name, last):
        (tmp_path / name).write_bytes(b"abcd" * 400 + last * 100)  # the end is to test with
        settings = {k: v for k, v in TINY.items() if k not in ("task.samples", "task.held_out")}
        settings["task.file"] = str(tmp_path / name)
        return PRESETS["text"]["small"].changed_by(settings, seeds=1, models=["fixed"])

    out = tmp_path / "out"
    run_experiment(text("one", b"a"), out)
    run_experiment(text("moved", b"a"), out, resume=True)
    changed = text("moved", b"b")
    assert "differs in its data; restore" in refusal(run_experiment, changed, out, resume=True)


def test_a_run_of_another_model_under_the_same_name_is_refused(out, monkeypatch):
    monkeypatch.setitem(VARIANTS["lru"], "query", "constant")  # as it was once
    with pytest.raises(InputError, match=r"lru-0: has another configuration .* remove it"):
        run_experiment(MADE, out, resume=True)


def test_a_directory_with_something_is_left_alone(out):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for experiment, resume, words in [
        (MADE, False, "already holds something"),
        (tuned(models=MODELS, trials=4), True, "differs in trials: it had 3, now it is 4; give"),
        (tuned(models=MODELS, equal_parameters=False), True, "differs in equal_parameters"),
        (MADE.changed_by({"task.seed": 1}), True, "differs in task"),
        (PRESETS["recall"]["small"], True, "out: an experiment of memory-horizon; give another"),
        (MADE.changed_by({"task.length": 0}), False, "task.length: expected an integer from 1"),
    ]:
        assert words in refusal(run_experiment, experiment, out, resume)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    missing = out.parent / "missing"
    assert "no experiment to resume" in refusal(run_experiment, tiny(), missing, resume=True)
    assert names(out.parent) == {"out"}
    (file := out.parent / "file").touch()
    assert "file: a file; choose a new directory" in refusal(run_experiment, tiny(), file)


def test_a_damaged_result_is_made_again(out):
    before = results(out)
    record = out / "runs" / "fixed-0" / "test.json"
    for change in ({"loss": None}, {"model": "lru"}):
        record.write_text(json.dumps(json.loads(record.read_text()) | change))
        assert len(read_runs(out)) == 2
        run_experiment(MADE, out, resume=True)
        assert results(out) == before
    log = out / "runs" / "fixed-0" / "log.jsonl"
    log.write_text(log.read_text() + "x\n")
    with pytest.raises(InputError, match=r"fixed-0/log\.jsonl: line \d+ is not a JSON object"):
        run_experiment(MADE, out, resume=True)


def test_records_come_back_from_the_report_where_folders_were_removed(out):
    """Nothing is trained again, and the report is the same but for the pictures of weights."""
    before = raw_results(out)
    for folder in ("trials", "runs"):
        (out / folder).rename(out.parent / folder)
        (out / folder / "fixed-0").mkdir(parents=True)  # as a kill leaves it while records return
    run_experiment(MADE.changed_by(models=["fixed"], seeds=1), out, resume=True)
    after = raw_results(out)
    for key in ("curves", "runs", "trials"):
        assert after[key] == before[key]
    assert not list(out.rglob("model.safetensors"))


def test_no_record_of_other_settings_comes_back(out):
    before = {r["seed"]: r["loss"] for r in results(out) if r["model"] == "fixed"}
    for number in (0, 1):
        trial = out / "trials" / f"fixed-{number}" / "trial.json"
        record = json.loads(trial.read_text())
        trial.write_text(json.dumps(record | {"validation_loss": 9 - record["validation_loss"]}))
    for folder in (out / "runs").glob("fixed-*"):
        shutil.rmtree(folder)
    run_experiment(MADE, out, resume=True)
    assert all(before[r["seed"]] != r["loss"] for r in results(out) if r["model"] == "fixed")
