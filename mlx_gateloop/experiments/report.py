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
from mlx_gateloop.experiments.report_text import report_text
from mlx_gateloop.experiments.results import Runs, counted, read_runs, runs_of
from mlx_gateloop.experiments.tuning import best, read_trials
from mlx_gateloop.experiments.variants import REFERENCE
from mlx_gateloop.io.files import replacing
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.models import load_model
from mlx_gateloop.plots import figures
from mlx_gateloop.train.setup import tokens_per_step
from mlx_gateloop.watch import trace_of


def write_report(out: Path, experiment: Experiment, tasks: Sequence[Task], command: str) -> None:
    """Compare the runs in `out/runs`, finished or not, in results.json, results.md and pictures."""
    every = read_runs(out)
    tree = _collect(out, experiment, tasks, every, command)
    _write(out / "results.json", json.dumps(tree))
    if not every:
        return
    _draw(out, tree, tasks)
    _write(out / "results.md", report_text(tree, out))


def _collect(
    out: Path, experiment: Experiment, tasks: Sequence[Task], every: Runs, command: str
) -> dict[str, Any]:
    """Collect what results.json holds."""
    runs = counted(every)
    seeds = sorted({r["seed"] for results in runs.values() for r in results}) or [0]
    return {
        "experiment": asdict(experiment),
        "environment": facts(command),
        "oracles": mean_scores([tasks[seed % len(tasks)] for seed in seeds]),
        "tokens_per_step": tokens_per_step(experiment.config(tasks[0], REFERENCE, 0)),
        "curves": read_curves(out, runs, measure_of(experiment.name)),
        "models": {m: {"state_size": _state_size(experiment, out, tasks[0], m)} for m in runs},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def _state_size(experiment: Experiment, out: Path, task: Task, model: str) -> int | None:
    """The number of values that a model keeps in a layer; None if it grows."""
    config = experiment.config(task, model, 0, best(experiment, out, model))
    return config.model_args(task.vocab_size).state_size


def _draw(out: Path, tree: Mapping[str, Any], tasks: Sequence[Task]) -> None:
    """Draw the pictures of the records, and the transitions of each model's first run."""
    draw_records(out, tree)
    for model, results in counted(runs_of(tree)).items():
        seed = results[0]["seed"]
        task, run = tasks[seed % len(tasks)], out / "runs" / f"{model}-{seed}"
        if not (run / "model.safetensors").exists():  # restored from a report
            continue
        tokens = task.test.inputs[0]
        marks = np.flatnonzero(tokens == task.marker).tolist()
        trace = trace_of(load_model(run), tokens)
        if trace.tokens:
            figures.transitions(trace, marks, out / transitions_png(model))
