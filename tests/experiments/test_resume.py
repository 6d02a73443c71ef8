"""Experiments that were interrupted, killed, moved, damaged or begun by something else."""

import json
from pathlib import Path

import pytest
from helpers.errors import refusal
from helpers.experiments import names, results, tiny
from helpers.training import TINY_EXPERIMENT as TINY
from helpers.training import press_ctrl_c, same_arrays

from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.results import read_runs
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.runs import Run
from mlx_gateloop.experiments.variants import VARIANTS
from mlx_gateloop.io.files import locked
from mlx_gateloop.train import Interrupted


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("is_recorded", [True, False], ids=["ctrl-c", "killed"])
def test_a_resumed_experiment_is_the_uninterrupted_one(tmp_path, monkeypatch, is_recorded):
    run_experiment(tiny(), tmp_path / "straight")
    out = tmp_path / "parts"
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, SampleBatches, 9)  # the third step of the second run
        with pytest.raises(Interrupted, match="continue with the same command"):
            run_experiment(tiny(), out)
    assert [(r["model"], r["steps"]) for r in results(out)] == [
        ("data_controlled", 6),
        ("fixed", 3),
    ]
    assert "**of 6**" in (out / "results.md").read_text()
    before = (out / "runs" / "data_controlled-0" / "log.jsonl").read_text()
    if not is_recorded:  # as after a kill
        (out / "runs" / "fixed-0" / "test.json").unlink()
    run_experiment(tiny(), out, resume=True)
    assert results(out) == results(tmp_path / "straight")
    assert (out / "runs" / "data_controlled-0" / "log.jsonl").read_text() == before
    for name in names(out / "runs"):
        last = Path("runs", name, "checkpoints", "last.safetensors")
        same_arrays(out / last, tmp_path / "straight" / last)


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_in_the_last_step_of_a_run(tmp_path, monkeypatch):
    """It ends the experiment before its next run, and has no effect in the last one."""
    experiment, out = tiny(seeds=1), tmp_path / "out"
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, SampleBatches, 6)
        with pytest.raises(Interrupted, match="continue with the same command"):
            run_experiment(experiment, out)
    assert [(r["steps"], r["finished"]) for r in results(out)] == [(6, True)]
    press_ctrl_c(monkeypatch, SampleBatches, 6)
    run_experiment(experiment, out, resume=True)
    assert [(r["steps"], r["finished"]) for r in results(out)] == 2 * [(6, True)]


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_between_two_runs(tmp_path, monkeypatch):
    original = Run.go

    def go(run):
        if run.model == "fixed":
            raise KeyboardInterrupt
        return original(run)

    monkeypatch.setattr(Run, "go", go)
    with pytest.raises(Interrupted, match=r"saved in .*out; continue with the same command"):
        run_experiment(tiny(seeds=1), tmp_path / "out")
    assert [r["model"] for r in results(tmp_path / "out")] == ["data_controlled"]


@pytest.mark.usefixtures("without_pictures")
def test_the_record_of_a_run_that_another_process_trains_stays(tmp_path):
    experiment = tiny(seeds=1, models=["fixed"])
    run_experiment(experiment, tmp_path)
    run = Run(experiment, "fixed", 0, 0, tmp_path / "runs" / "fixed-0")
    before = run.record.read_text()
    with locked(run.directory), pytest.raises(InputError, match="another process is writing"):
        run.go()
    assert run.record.read_text() == before


@pytest.mark.slow
def test_side_by_side_is_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    experiment = tiny().changed_by(trials=1, draws=2)
    for jobs in (1, 3):
        run_experiment(experiment, tmp_path / str(jobs), jobs=jobs)
    assert results(tmp_path / "1") == results(tmp_path / "3")
    for name in names(tmp_path / "1" / "runs"):
        last = Path("runs", name, "checkpoints", "last.safetensors")
        same_arrays(tmp_path / "1" / last, tmp_path / "3" / last)


@pytest.mark.usefixtures("without_pictures")
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


@pytest.mark.usefixtures("without_pictures")
def test_a_run_of_another_model_under_the_same_name_is_refused(tmp_path, monkeypatch):
    out, models = tmp_path / "out", ["retnet"]
    run_experiment(tiny(seeds=1, models=models, steps=3), out)
    run_experiment(tiny(seeds=1, models=models, steps=3), out, resume=True)
    monkeypatch.setitem(VARIANTS["retnet"], "sub_norm", True)  # as it was once
    with pytest.raises(InputError, match=r"retnet-0: has another configuration .* remove it"):
        run_experiment(tiny(seeds=1, models=models, steps=3), out, resume=True)


@pytest.mark.usefixtures("without_pictures")
def test_a_directory_with_something_is_left_alone(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, steps=3), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for experiment, resume, words in [
        (tiny(seeds=1, steps=3), False, "already holds something"),
        (tiny(seeds=1, steps=4), True, r"differs in train\.steps: it had 3, now it is 4; give all"),
        (tiny(seeds=1, steps=3, task__seed=1), True, "differs in task"),
        (PRESETS["recall"]["small"], True, "out: an experiment of memory-horizon; give another"),
        (tiny(seeds=1, steps=3, task__length=0), False, "task.length: expected an integer from 1"),
    ]:
        with pytest.raises(InputError, match=words) as caught:
            run_experiment(experiment, out, resume)
        assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no experiment to resume"):
        run_experiment(tiny(), tmp_path / "missing", resume=True)
    assert names(tmp_path) == {"out"}
    (file := tmp_path / "file").touch()
    assert "file: a file; choose a new directory" in refusal(run_experiment, tiny(), file)


@pytest.mark.usefixtures("without_pictures")
def test_a_damaged_result_is_made_again(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, steps=3), out)
    before = results(out)
    record = out / "runs" / "fixed-0" / "test.json"
    for change in ({"loss": None}, {"model": "lru"}):
        record.write_text(json.dumps(json.loads(record.read_text()) | change))
        assert len(read_runs(out)) == 1
        run_experiment(tiny(seeds=1, steps=3), out, resume=True)
        assert results(out) == before
    log = out / "runs" / "fixed-0" / "log.jsonl"
    log.write_text(log.read_text() + "x\n")
    with pytest.raises(InputError, match=r"fixed-0/log\.jsonl: line \d+ is not a JSON object"):
        run_experiment(tiny(seeds=1, steps=3), out, resume=True)
