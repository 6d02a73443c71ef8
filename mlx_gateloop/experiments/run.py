"""Training and testing every model of an experiment, so that a stopped one can go on.

OUT/experiment.json                       the settings
OUT/runs/MODEL-SEED/                      a training run, see `train.output`
OUT/runs/MODEL-SEED/test.json             what its best weights do on the test samples
OUT/results.{json,md}, OUT/*.png          the comparison, rewritten whenever the command ends
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError
from mlx_gateloop.evaluate import evaluate_task
from mlx_gateloop.experiments.presets import Experiment
from mlx_gateloop.experiments.report import write_report
from mlx_gateloop.experiments.resets import mean_magnitudes
from mlx_gateloop.io import load_model, write_text
from mlx_gateloop.train import Interrupted, TrainConfig, train
from mlx_gateloop.train.checkpoint import read_header
from mlx_gateloop.train.source import TaskSource
from mlx_gateloop.train.start import num_parameters

LAST = Path("checkpoints") / "last.safetensors"


def run(experiment: Experiment, out: Path, resume: bool = False, command: str = "") -> None:
    """Train all models of an experiment and leave the comparison in a directory.

    Models take turns, seed by seed, so that what is there is comparable whenever it ends.

    Args:
        experiment: what to do; a resumed one must be equal to the first, but for seeds and models.
        out: must be new or empty unless resumed.
        resume: continue what `out` holds: finished runs stay, the others go on exactly.
        command: what was typed, for the report.

    Raises:
        InputError: settings that cannot be used, or a directory that cannot be.
        Interrupted: Ctrl-C; all is saved, and the report tells of what is there.
    """
    task = experiment.make_task()
    experiment = replace(experiment, data=task.fingerprint)
    configs = {
        (seed, model): experiment.config(task, model, seed)
        for seed in range(experiment.seeds)
        for model in experiment.models
    }
    for config in configs.values():  # what cannot be trained is said before anything is
        config.total_steps(TaskSource(config, task).per_epoch)
    whole = _claim(out, experiment, resume)
    try:
        _test_again(out, task)
        for number, ((seed, model), config) in enumerate(configs.items(), 1):
            directory = out / "runs" / f"{model}-{seed}"
            if not _is_finished(directory):
                print(f"run {number} of {len(configs)}: {model}, seed {seed}", file=sys.stderr)
                _train(config, task, directory, {"model": model, "seed": seed})
    except Interrupted:
        advice = "the same command with --resume goes on"
        raise Interrupted(f"interrupted, saved in {out}; {advice}") from None
    finally:
        write_report(out, whole, task, command)


def _train(config: TrainConfig, task: Task, directory: Path, labels: dict[str, Any]) -> None:
    """Train a model, or go on with it, and test it, whether it was finished or interrupted."""
    finished = False
    try:
        train(config, task, directory, resume=directory.exists())
        finished = True
    finally:
        if (directory / LAST).exists():  # else there is nothing to test, and the cause is shown
            steps = config.total_steps(TaskSource(config, task).per_epoch)
            _save_test(directory, task, labels | {"finished": finished, "total_steps": steps})


def _claim(out: Path, experiment: Experiment, resume: bool) -> Experiment:
    """Make the directory of a new experiment, or see that it holds this one.

    Returns:
        What it holds or is to hold: the seeds and models of before too.
    """
    file = out / "experiment.json"
    if resume:
        if not file.exists():
            raise InputError(f"{out}: no experiment to resume; start without --resume")
        saved = Experiment.load(file)
        before, now = _compared(saved), _compared(experiment)
        if saved.data is None:  # as every experiment was begun once
            before["data"] = now["data"]
        for key, value in now.items():
            if before[key] != value:
                raise InputError(
                    f"{out}: the experiment to resume differs in {key}: it had {before[key]}, "
                    f"now it is {value}"
                )
        models = tuple(dict.fromkeys((*saved.models, *experiment.models)))
        experiment = replace(experiment, models=models, seeds=max(saved.seeds, experiment.seeds))
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: already holds something; choose a new directory, or --resume")
    out.mkdir(parents=True, exist_ok=True)
    experiment.save(file)
    return experiment


def _compared(experiment: Experiment) -> dict[str, Any]:
    """What a resumed experiment must share; a text may lie elsewhere: `data` says which it is."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(experiment)))
    settings["task"].pop("file", None)
    return {key: value for key, value in settings.items() if key not in ("seeds", "models")}


def _is_finished(directory: Path) -> bool:
    try:
        result = json.loads((directory / "test.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return bool(result["finished"])


def _test_again(out: Path, task: Task) -> None:
    """Test the runs whose spans were counted otherwise, so that all can be compared."""
    for file in out.glob("runs/*/test.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result.get("asked_by_span") != _by_span(task.test):
            _save_test(file.parent, task, result)


def _save_test(directory: Path, task: Task, result: dict[str, Any]) -> None:
    write_text(directory / "test.json", json.dumps(result | _test(directory, task)) + "\n")


def _by_span(test: Samples) -> list[int]:
    """How many answers are asked, by span."""
    return np.bincount(test.span[test.asked], minlength=test.span.max() + 1).tolist()


def _test(directory: Path, task: Task) -> dict[str, Any]:
    """What the best weights of a run (by validation loss) do on the test samples."""
    model, test = load_model(directory), task.test
    score = evaluate_task(model, test, batch_size=32)
    progress, _ = read_header(directory / LAST)
    return {
        "parameters": num_parameters(model),
        "intermediate_size": model.args.intermediate_size,
        "steps": progress.step,
        "seconds": progress.seconds + progress.recent_seconds,
        "loss": score.loss_nats,
        "accuracy": score.accuracy,
        "asked_by_span": _by_span(test),
        "right_by_span": np.bincount(
            test.span[score.right], minlength=test.span.max() + 1
        ).tolist(),
        "magnitudes": None if task.marker is None else mean_magnitudes(model, test, task.marker),
    }
