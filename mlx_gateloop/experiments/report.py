"""The report of an experiment: results.json, the pictures, and results.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.data.baselines import mean_scores
from mlx_gateloop.data.task import Task
from mlx_gateloop.experiments.curves import read_curves
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import measure_of
from mlx_gateloop.experiments.pictures import draw_records, transitions_png
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.report_text import report_text
from mlx_gateloop.experiments.results import Runs, counted, read_runs, runs_of
from mlx_gateloop.experiments.tuning import best, read_trials
from mlx_gateloop.experiments.variants import REFERENCE
from mlx_gateloop.io.files import replacing
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.models import load_model
from mlx_gateloop.plots import figures
from mlx_gateloop.train.setup import tokens_per_step
from mlx_gateloop.train.task import TaskSource
from mlx_gateloop.watch import trace_of


def write_report(out: Path, experiment: Experiment, tasks: Sequence[Task], command: str) -> None:
    """Compare the runs in `out/runs`, finished or not; without runs, write nothing.

    Args:
        out: see `experiments.run`; gets results.json, the pictures and results.md.
        experiment: the experiment.
        tasks: its samples, of each draw.
        command: the command line.
    """
    if not (every := read_runs(out)):
        return
    tree = _collect(out, experiment, tasks, every, command)
    _write(out / "results.json", json.dumps(tree))
    _draw(out, tree, tasks)
    _write(out / "results.md", report_text(tree, out))


def _collect(
    out: Path, experiment: Experiment, tasks: Sequence[Task], every: Runs, command: str
) -> dict[str, Any]:
    """Collect what results.json holds."""
    runs = counted(every)
    seeds = sorted({r["seed"] for results in runs.values() for r in results})
    states = _states(out, experiment, tasks[0], runs)
    return {
        "experiment": asdict(experiment),
        "environment": facts(command),
        "oracles": mean_scores([tasks[seed % len(tasks)] for seed in seeds]),
        "preset_steps": _preset_steps(experiment, tasks[0]),
        "tokens_per_step": tokens_per_step(experiment.config(tasks[0], REFERENCE, 0)),
        "curves": read_curves(out, runs, measure_of(experiment.name)),
        "models": {model: _summary(results, states[model]) for model, results in runs.items()},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def _summary(results: list[dict[str, Any]], state_size: int | None) -> dict[str, Any]:
    accuracies = [result["accuracy"] for result in results]
    magnitudes = [result["magnitudes"] for result in results if result["magnitudes"]]
    return {
        "seeds": [result["seed"] for result in results],
        "parameters": results[0]["parameters"],
        "state_size": state_size,
        "accuracy": float(np.mean(accuracies)),
        "bits_an_answer": float(np.mean([result["loss"] for result in results]) / np.log(2)),
        "standard_deviation": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "runs_with_resetting_channels": sum(sum(m["resetting"]) > 0 for m in magnitudes),
    }


def _states(out: Path, experiment: Experiment, task: Task, runs: Runs) -> dict[str, int | None]:
    """The numbers that each model keeps in a layer."""
    configs = {m: experiment.config(task, m, 0, best(experiment, out, m)) for m in runs}
    return {m: config.model_args(task.vocab_size).state_size for m, config in configs.items()}


def _preset_steps(experiment: Experiment, task: Task) -> int:
    """The number of steps of the preset's own runs on these samples."""
    preset = PRESETS[experiment.name][experiment.preset]
    config = preset.config(task, REFERENCE, 0)
    return config.total_steps(TaskSource(config, task).batches.per_epoch)


def _draw(out: Path, tree: Mapping[str, Any], tasks: Sequence[Task]) -> None:
    """Draw the pictures of the records, and the transitions of each model's first run."""
    draw_records(out, tree)
    for model, results in counted(runs_of(tree)).items():
        task = tasks[results[0]["seed"] % len(tasks)]
        tokens = task.test.inputs[0]
        marks = np.flatnonzero(tokens == task.marker).tolist()
        trace = trace_of(load_model(out / "runs" / f"{model}-{results[0]['seed']}"), tokens)
        if trace.tokens:
            figures.transitions(trace, marks, out / transitions_png(model))
