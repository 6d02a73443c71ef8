"""Train and test every model of an experiment; an interrupted one can be resumed.

OUT/experiment.json                       the experiment
OUT/runs/MODEL-SEED/                      a training run, see `train.output`
OUT/runs/MODEL-SEED/test.json             results of its best weights on the test samples
OUT/results.{json,md}, OUT/*.png          the comparison, rewritten whenever the command ends
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.data.task import Task
from mlx_gateloop.errors import InputError
from mlx_gateloop.evaluate import evaluate_task
from mlx_gateloop.experiments.presets import Experiment
from mlx_gateloop.experiments.report import write_report
from mlx_gateloop.experiments.resets import mean_magnitudes
from mlx_gateloop.files import left_in, locked, replacing, sweep
from mlx_gateloop.io import load_model
from mlx_gateloop.train import Interrupted, TrainConfig, train
from mlx_gateloop.train.checkpoint import read_newest
from mlx_gateloop.train.source import TaskSource
from mlx_gateloop.train.start import num_parameters

LAST = Path("checkpoints") / "last.safetensors"


def run_experiment(
    experiment: Experiment, out: Path, resume: bool = False, command: str = ""
) -> None:
    """Train all models of an experiment and write the comparison to a directory.

    All models are trained with one seed before the next, so that an interrupted experiment has
    comparable runs.

    Args:
        experiment: the experiment; a resumed one must equal the first, except in seeds and models.
        out: the directory; new or empty unless resumed.
        resume: continue what `out` holds: finished runs stay, the others continue exactly.
        command: the command line, for the report.

    Raises:
        InputError: unusable settings or an unusable directory.
        Interrupted: Ctrl-C; everything is saved, and the report covers it.
    """
    task = experiment.make_task()
    experiment = replace(experiment, data=task.fingerprint)
    configs = {
        (seed, model): experiment.config(task, model, seed)
        for seed in range(experiment.seeds)
        for model in experiment.models
    }
    for config in configs.values():  # report a run that cannot be trained before training any
        config.total_steps(TaskSource(config, task).batches.per_epoch)
    whole = _compare(out, experiment, resume)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        sweep(out)
        whole.save(out / "experiment.json")
        _run(configs, whole, task, out, command)


def _run(
    configs: dict[tuple[int, str], TrainConfig],
    whole: Experiment,
    task: Task,
    out: Path,
    command: str,
) -> None:
    stop = False
    try:
        for number, ((seed, model), config) in enumerate(configs.items(), 1):
            directory = out / "runs" / f"{model}-{seed}"
            if _is_finished(directory):
                continue
            if stop:
                raise Interrupted
            print(f"run {number} of {len(configs)}: {model}, seed {seed}", file=sys.stderr)
            stop = _train(config, task, directory, {"model": model, "seed": seed})
    except Interrupted:
        advice = "continue with the same command and --resume"
        raise Interrupted(f"interrupted, saved in {out}; {advice}") from None
    finally:
        write_report(out, whole, task, command)


def _train(config: TrainConfig, task: Task, directory: Path, labels: dict[str, object]) -> bool:
    """Train a model, or resume its run, and test it, whether finished or interrupted.

    Returns:
        True if the run is finished and Ctrl-C came in its last step.
    """
    finished = False
    try:
        result = train(config, task, directory, resume=directory.exists())
        finished = True
        return result.stop_requested
    finally:
        if (directory / LAST).parent.exists():  # otherwise training failed before there was a model
            steps = config.total_steps(TaskSource(config, task).batches.per_epoch)
            record = labels | {"finished": finished, "total_steps": steps} | _test(directory, task)
            with replacing(directory / "test.json") as partial:
                partial.write_text(json.dumps(record) + "\n", encoding="utf-8")


def _compare(out: Path, experiment: Experiment, resume: bool) -> Experiment:
    """Check that the directory of a new experiment is free, or that a resumed one is this.

    Returns:
        The experiment, with the seeds and models that the directory already has.
    """
    file = out / "experiment.json"
    if resume:
        if not file.exists():
            raise InputError(f"{out}: no experiment to resume; start without --resume")
        saved = Experiment.load(file)
        before, now = _compared(saved), _compared(experiment)
        for key, value in now.items():
            if before[key] != value:
                raise InputError(
                    f"{out}: the experiment to resume differs in {key}: it had {before[key]}, "
                    f"now it is {value}"
                )
        models = tuple(dict.fromkeys((*saved.models, *experiment.models)))
        experiment = replace(experiment, models=models, seeds=max(saved.seeds, experiment.seeds))
    elif out.exists() and (not out.is_dir() or set(out.iterdir()) - set(left_in(out))):
        raise InputError(f"{out}: already holds something; choose a new directory, or --resume")
    return experiment


def _compared(experiment: Experiment) -> dict[str, object]:
    """The values that a resumed experiment must share; a text may move, as `data` identifies it."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(experiment)))
    values["task"].pop("file", None)
    return {key: value for key, value in values.items() if key not in ("seeds", "models")}


def _is_finished(directory: Path) -> bool:
    try:
        result = json.loads((directory / "test.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return bool(result["finished"])


def _test(directory: Path, task: Task) -> dict[str, object]:
    """Test the best weights of a run (by validation loss)."""
    model, test = load_model(directory), task.test
    score = evaluate_task(model, test, batch_size=32)
    _, progress, _ = read_newest(directory / LAST)
    spans = test.span.max() + 1
    return {
        "parameters": num_parameters(model),
        "intermediate_size": model.args.intermediate_size,
        "steps": progress.step,
        "seconds": progress.seconds + progress.recent_seconds,
        "loss": score.loss_nats,
        "accuracy": score.accuracy,
        "asked_by_span": np.bincount(test.span[test.asked], minlength=spans).tolist(),
        "right_by_span": np.bincount(test.span[score.right], minlength=spans).tolist(),
        "magnitudes": None if task.marker is None else mean_magnitudes(model, test, task.marker),
    }
