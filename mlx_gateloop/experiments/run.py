"""Training and testing every model of an experiment, so that a stopped one can go on.

OUT/experiment.json                       the settings
OUT/runs/TRANSITION-SEED/                 a training run, see `train.output`
OUT/runs/TRANSITION-SEED/test.json        what its best weights do on the test samples
OUT/results.{json,md}, OUT/*.png          the comparison, rewritten whenever the command ends
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError
from mlx_gateloop.evaluate import evaluate_task
from mlx_gateloop.experiments.presets import Experiment
from mlx_gateloop.experiments.report import write_report
from mlx_gateloop.io import load_model, write_text
from mlx_gateloop.lm import Model
from mlx_gateloop.trace import trace_of
from mlx_gateloop.train import Interrupted, train
from mlx_gateloop.train.checkpoint import read_header
from mlx_gateloop.train.source import TaskSource

TRACED = 32  # test samples whose transitions are averaged


def run(experiment: Experiment, out: Path, resume: bool = False, command: str = "") -> None:
    """Train all models of an experiment and leave the comparison in a directory.

    Models take turns, seed by seed, so that what is there is comparable whenever it ends.

    Args:
        experiment: what to do; a resumed one must be equal to the first.
        out: must be new or empty unless resumed.
        resume: continue what `out` holds: finished runs stay, the others go on exactly.
        command: what was typed, for the report.

    Raises:
        InputError: settings that cannot be used, or a directory that cannot be.
        Interrupted: Ctrl-C; all is saved, and the report tells of what is there.
    """
    task = experiment.make_task()
    configs = {
        (seed, transition): experiment.config(task, transition, seed)
        for seed in range(experiment.seeds)
        for transition in experiment.transitions
    }
    steps = [config.total_steps(TaskSource(config, task).per_epoch) for config in configs.values()]
    _claim(out, experiment, resume)
    interrupted = False
    for number, ((seed, transition), config) in enumerate(configs.items(), 1):
        directory = out / "runs" / f"{transition}-{seed}"
        if _is_finished(directory):
            continue
        print(f"run {number} of {len(configs)}: {transition}, seed {seed}", file=sys.stderr)
        try:
            train(config, task, directory, resume=directory.exists())
        except Interrupted:
            interrupted = True
        result = {"transition": transition, "seed": seed, "total_steps": steps[number - 1]}
        write_text(directory / "test.json", json.dumps(result | _test(directory, task)) + "\n")
        if interrupted:
            break
    write_report(out, experiment, task, command)
    if interrupted:
        raise Interrupted(f"interrupted, saved in {out}; the same command with --resume goes on")


def _claim(out: Path, experiment: Experiment, resume: bool) -> None:
    """Make the directory of a new experiment, or see that it holds this one."""
    file = out / "experiment.json"
    settings = json.loads(json.dumps(asdict(experiment)))
    if resume:
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{out}: no experiment to resume; start without --resume") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: not readable ({error})") from None
        for key in ("name", "preset", "task", "train"):  # seeds and transitions may be added
            if saved[key] != settings[key]:
                raise InputError(
                    f"{out}: the experiment to resume differs in {key}: it had {saved[key]}, "
                    f"now it is {settings[key]}"
                )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: already holds something; choose a new directory, or --resume")
    out.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(settings, indent=2) + "\n")


def _is_finished(directory: Path) -> bool:
    try:
        result = json.loads((directory / "test.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return result["steps"] == result["total_steps"]


def _test(directory: Path, task: Task) -> dict[str, Any]:
    """What the best weights of a run (by validation loss) do on the test samples."""
    model, test = load_model(directory), task.test
    score = evaluate_task(model, test, batch_size=32)
    progress, _ = read_header(directory / "checkpoints" / "last.safetensors")
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    asked, size = test.asked, test.span.max() + 1
    return {
        "parameters": sum(weight.size for weight in weights.values()),
        "steps": progress.step,
        "seconds": progress.seconds + progress.recent_seconds,
        "loss": score.loss_nats,
        "accuracy": score.accuracy,
        "asked_by_span": np.bincount(test.span[asked], minlength=size).tolist(),
        "right_by_span": np.bincount(test.span[score.right], minlength=size).tolist(),
        "magnitudes": _magnitudes(model, test, task.marker),
    }


def _magnitudes(model: Model, test: Samples, marker: int | None) -> dict[str, Any] | None:
    """The mean |a| of every layer and channel at the marker's positions, and elsewhere."""
    if marker is None:
        return None
    inputs = test.inputs[:TRACED]
    traces = [trace_of(model, tokens) for tokens in inputs]
    layers = range(traces[0].layers)
    magnitude = np.stack([[trace.magnitude(layer) for trace in traces] for layer in layers])
    at = inputs == marker
    return {
        "at_marker": magnitude[:, at].mean(1).round(4).tolist(),
        "elsewhere": magnitude[:, ~at].mean(1).round(4).tolist(),
    }
