import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.training import TINY_EXPERIMENT as TINY
from helpers.training import press_ctrl_c, same_arrays

from mlx_gateloop.cli import main
from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.variants import VARIANTS
from mlx_gateloop.train import Interrupted
from mlx_gateloop.train.checkpoint import read_newest

FILES = {"experiment.json", "results.json", "results.md", "runs"}
PICTURES = {"accuracies.png", "accuracy-over-span.png", "training-curves.png"}
TRANSITIONS = {"transitions-data_controlled.png", "transitions-fixed.png"}
CHILD = """
import json, sys, time
from itertools import count
from pathlib import Path
from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.run import run_experiment
numbers, draw = count(1), SampleBatches.batch
def batch(*arguments):
    if next(numbers) == 75:  # of the second model; it waits here to be killed
        time.sleep(600)
    return draw(*arguments)
SampleBatches.batch = batch
experiment = PRESETS["memory-horizon"]["bar"].changed_by(json.loads(sys.argv[1]), seeds=1)
run_experiment(experiment, Path(sys.argv[2]))
"""


def tiny(name="memory-horizon", preset="bar", seeds=2, models=None, equal=False, **changes):
    settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return PRESETS[name][preset].changed_by(settings, seeds, models, equal)


@pytest.fixture
def without_pictures(monkeypatch):
    """They take most of the time."""
    monkeypatch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: [])
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)


def results(out):
    """The measurements, without times."""
    runs = json.loads((out / "results.json").read_text())["runs"]
    return [{k: v for k, v in result.items() if k not in ("seconds", "made")} for result in runs]


def names(out):
    return {path.name for path in out.iterdir()}


def test_every_model_and_seed_is_trained_and_compared(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(), out, command="gateloop memory-horizon --preset bar")
    assert names(out) == FILES | PICTURES | TRANSITIONS
    assert names(out / "runs") == {f"{t}-{s}" for t in ("data_controlled", "fixed") for s in (0, 1)}
    assert "| runs ended " in (out / "results.md").read_text()
    for result in results(out):
        asked, right = np.array(result["asked_by_span"]), np.array(result["right_by_span"])
        assert asked.sum() == 8 * 12
        assert result["accuracy"] == right.sum() / asked.sum()
        assert result["steps"] == result["total_steps"] == 6
        at, elsewhere = (np.array(result["magnitudes"][k]) for k in ("at_marker", "elsewhere"))
        assert at.shape == elsewhere.shape == (2, 8)
        assert len(result["magnitudes"]["resetting"]) == 2
        assert np.allclose(at, elsewhere, atol=1e-3) == (result["model"] == "fixed")
    configs = [
        (out / "runs" / name / "config.yaml").read_text().splitlines()
        for name in ("data_controlled-1", "fixed-1")
    ]
    different = [pair for pair in zip(*configs, strict=True) if pair[0] != pair[1]]
    assert different == [("  transition: data_controlled", "  transition: fixed")]
    text = (out / "results.md").read_text()
    assert "`gateloop memory-horizon --preset bar`" in text
    assert "data_controlled - fixed: " in text
    assert "at least one resetting channel: data_controlled 0 of 2; fixed 0 of 2." in text
    tree = json.loads((out / "results.json").read_text())
    for model, summary in tree["models"].items():
        curves = tree["curves"][model]
        assert [[step for step, _ in curve] for curve in curves] == [[3, 6], [3, 6]]
        accuracies = [r["accuracy"] for r in results(out) if r["model"] == model]
        assert summary["seeds"] == [0, 1]
        assert summary["accuracy"] == np.mean(accuracies)
        assert summary["standard_deviation"] == np.std(accuracies, ddof=1)
        assert summary["runs_with_resetting_channels"] == 0
    for picture in PICTURES | TRANSITIONS:
        assert f"({picture})" in text
        assert (out / picture).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_and_resume_is_the_uninterrupted_experiment(tmp_path, monkeypatch):
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


@pytest.mark.slow  # tests of side_by_side are its short form
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
def test_killed_and_resumed_is_the_uninterrupted_experiment(tmp_path):
    settings = TINY | {"steps": 40}
    out = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(settings), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log, checkpoint = (out / "runs" / "fixed-0" / n for n in ("log.jsonl", "checkpoints"))
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and child.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) > 4:
            break
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert child.returncode == -signal.SIGKILL
    # The kill may fall between the two renames of a checkpoint's write.
    assert 0 < read_newest(checkpoint / "last.safetensors")[1].step < 40
    experiment = PRESETS["memory-horizon"]["bar"].changed_by(settings, seeds=1)
    run_experiment(experiment, out, resume=True)
    run_experiment(experiment, tmp_path / "straight")
    assert results(out) == results(tmp_path / "straight")


@pytest.mark.usefixtures("without_pictures")
def test_seeds_and_models_may_be_added(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, models=["fixed"]), out)
    assert [(r["model"], r["seed"]) for r in results(out)] == [("fixed", 0)]
    assert "data_controlled" not in (out / "results.md").read_text()
    run_experiment(tiny(seeds=2), out, resume=True)
    assert len(results(out)) == 4


@pytest.mark.usefixtures("without_pictures")
def test_fewer_seeds_and_models_leave_the_others_in_place(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(), out)
    run_experiment(tiny(seeds=1, models=["fixed", "lru"]), out, resume=True)
    saved = Experiment.load(out / "experiment.json")
    assert (saved.seeds, saved.models) == (2, ("data_controlled", "fixed", "lru"))
    assert len(results(out)) == 5
    assert json.loads((out / "results.json").read_text())["experiment"]["seeds"] == 2


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
    with pytest.raises(InputError, match="differs in data"):
        run_experiment(changed, out, resume=True)


@pytest.mark.usefixtures("without_pictures")
def test_models_of_equal_parameters(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, equal=True), out)
    controlled, fixed = results(out)
    assert (controlled["intermediate_size"], controlled["parameters"]) == (32, 1997)
    assert fixed["intermediate_size"] > 32
    assert abs(fixed["parameters"] - 1997) <= 2 * (8 + 1 + 8) / 2  # half a step of the width
    row = next(line for line in (out / "results.md").read_text().splitlines() if "| fixed" in line)
    assert row.split("|")[2].strip() == f"{fixed['parameters']:,}"
    with pytest.raises(InputError, match="differs in equal_parameters"):
        run_experiment(tiny(seeds=1), out, resume=True)


@pytest.mark.usefixtures("without_pictures")
def test_a_run_that_fails_leaves_the_report_of_the_others(tmp_path, monkeypatch):
    from mlx_gateloop.experiments import runs as module

    original = module.train

    def train(config, *others, **options):
        if config.model["transition"] == "fixed":
            raise InputError("the validation loss is not finite")
        return original(config, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "train", train)
        with pytest.raises(InputError, match="not finite"):
            run_experiment(tiny(seeds=1), tmp_path / "out")
    assert [r["model"] for r in results(tmp_path / "out")] == ["data_controlled"]
    run_experiment(tiny(seeds=1), tmp_path / "out", resume=True)
    assert [r["model"] for r in results(tmp_path / "out")] == ["data_controlled", "fixed"]


@pytest.mark.usefixtures("without_pictures")
def test_a_run_that_fails_before_its_first_checkpoint_says_why(tmp_path, monkeypatch):
    def train(config, task, directory, resume):
        directory.mkdir(parents=True)
        raise InputError("the disk is full")

    monkeypatch.setattr("mlx_gateloop.experiments.runs.train", train)
    with pytest.raises(InputError, match="the disk is full"):
        run_experiment(tiny(seeds=1), tmp_path / "out")


@pytest.mark.usefixtures("without_pictures")
def test_a_run_out_of_patience_is_finished(tmp_path):
    experiment = tiny(seeds=1, models=["fixed"], patience=1, eval_every=1, steps=400)
    experiment = experiment.changed_by({"optimizer.learning_rate": 0.3})
    run_experiment(experiment, tmp_path / "out")
    (result,) = results(tmp_path / "out")
    assert result["finished"]
    assert result["steps"] < result["total_steps"] == 400
    assert "**of" not in (tmp_path / "out" / "results.md").read_text()
    file = tmp_path / "out" / "runs" / "fixed-0" / "test.json"
    before = file.stat().st_mtime_ns
    run_experiment(experiment, tmp_path / "out", resume=True)
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("name", "transitions"),
    [("recall", set()), pytest.param("induction", TRANSITIONS, marks=pytest.mark.slow)],
)
def test_the_other_probes(tmp_path, name, transitions):
    run_experiment(tiny(name, "small", seeds=1), tmp_path / "out")
    assert names(tmp_path / "out") == FILES | PICTURES | TRANSITIONS
    marked = "resetting channels" in (tmp_path / "out" / "results.md").read_text()
    assert marked == bool(transitions)


def test_models_of_a_text_are_compared_by_their_bits(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("".join(f"{number}, " for number in range(1000)))
    settings = {key: value for key, value in TINY.items() if not key.startswith("task.")}
    settings |= {"task.file": str(text), "task.length": 12}
    run_experiment(PRESETS["text"]["small"].changed_by(settings, seeds=1), out)
    assert names(out) == FILES | PICTURES | TRANSITIONS | {"bits.png"}
    report = (out / "results.md").read_text()
    (ours, fixed) = (result["loss"] / np.log(2) for result in results(out))
    assert f"- fixed - data_controlled: {fixed - ours:+.3f} (by seed: " in report
    assert "Leads of data_controlled in bits a byte:" in report
    table = report.partition("## Test results")[2].split("\n\n")[2].splitlines()
    header, _, row, *_ = ([cell.strip() for cell in line.split("|")] for line in table)
    assert row[header.index("bits a byte by seed")] == f"{ours:.3f}"


def test_softmax_without_positions_has_no_transitions_to_show(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, models=["softmax"], steps=3), out)
    assert names(out) == FILES | PICTURES
    assert results(out)[0]["magnitudes"] is None
    argv = ["figures", "--model", str(out / "runs" / "softmax-0"), "--out", str(tmp_path / "drawn")]
    assert main(argv) == 0
    assert "accuracy-over-span.png" in names(tmp_path / "drawn")
    assert "transitions.png" not in names(tmp_path / "drawn")


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
        (tiny(seeds=1, steps=4), True, "differs in train"),
        (tiny(seeds=1, steps=3, task__seed=1), True, "differs in task"),
        (tiny(seeds=1, steps=3, task__length=0), False, "task.length: expected an integer from 1"),
    ]:
        with pytest.raises(InputError, match=words) as caught:
            run_experiment(experiment, out, resume)
        assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no experiment to resume"):
        run_experiment(tiny(), tmp_path / "missing", resume=True)
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not readable"),
        ("[" * 100_000, "not readable"),
        ("[]", "expected a JSON object"),
        ("{}", "not an experiment"),
    ],
)
def test_a_directory_of_something_else(tmp_path, text, words):
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        run_experiment(tiny(), tmp_path, resume=True)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"experiment.json"}


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    "settings",
    [{"steps": 250, "task.length": 32}, pytest.param({"steps": 800}, marks=pytest.mark.slow)],
    ids=["short", "whole"],
)
@pytest.mark.parametrize(
    ("model", "low", "high"), [("data_controlled", 0.85, 1), ("fixed", 0, 0.65)]
)
def test_the_bar(tmp_path, model, low, high, settings):
    """A model that can't decide to forget doesn't learn a sum since the last reset."""
    bar = PRESETS["memory-horizon"]["bar"]
    run_experiment(bar.changed_by(settings, seeds=1, models=[model]), tmp_path / "out")
    (result,) = results(tmp_path / "out")
    assert low <= result["accuracy"] <= high
    assert any(result["magnitudes"]["resetting"]) == (model == "data_controlled")
