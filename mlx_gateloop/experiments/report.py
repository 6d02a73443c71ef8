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
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.models import load_weights
from mlx_gateloop.plots import figures
from mlx_gateloop.train.setup import tokens_per_step
from mlx_gateloop.watch import trace_of


def write_report(out: Path, experiment: Experiment, tasks: Sequence[Task], command: str) -> None:
    """Compare the runs in `out/runs`, finished or not, in results.json, results.md and pictures."""
    every = read_runs(out)
    tree = _collect(out, experiment, tasks, every, command)
    write_text(out / "results.json", json.dumps(tree) + "\n")
    if not every:
        return
    _draw(out, tree, tasks)
    write_text(out / "results.md", report_text(tree, out) + "\n")


def _collect(
    out: Path, experiment: Experiment, tasks: Sequence[Task], every: Runs, command: str
) -> dict[str, Any]:
    runs = counted(every)
    seeds = sorted({r["seed"] for results in runs.values() for r in results}) or [0]
    configs = {m: experiment.config(tasks[0], m, 0, best(experiment, out, m)) for m in runs}
    shapes = {m: config.model_args(tasks[0].vocab_size) for m, config in configs.items()}
    return {
        "experiment": asdict(experiment),
        "environment": facts(command),
        "oracles": mean_scores([tasks[seed % len(tasks)] for seed in seeds]),
        "tokens_per_step": tokens_per_step(experiment.config(tasks[0], REFERENCE, 0)),
        "curves": read_curves(out, runs, measure_of(experiment.name)),
        "models": {model: {"state_size": args.state_size} for model, args in shapes.items()},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }


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
        trace = trace_of(load_weights(run), tokens)
        if trace.tokens:
            figures.transitions(trace, marks, out / transitions_png(model))
