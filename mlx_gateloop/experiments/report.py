"""The report of an experiment: results.json, results.md and figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.bench.machine import facts
from mlx_gateloop.data.oracles import mean_scores
from mlx_gateloop.data.task import Task
from mlx_gateloop.experiments.curves import Curves, log_paths, read_curves, speed_of_learning
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import (
    BITS,
    Measure,
    listed_leads,
    mean_and_spread,
    measure_of,
)
from mlx_gateloop.experiments.pictures import draw_records, line
from mlx_gateloop.experiments.presets import PRESETS, is_preset
from mlx_gateloop.experiments.resets import report_resets
from mlx_gateloop.experiments.results import (
    Runs,
    accuracy_by_span,
    counted,
    left_out,
    made,
    read_runs,
)
from mlx_gateloop.experiments.tuning import best, read_trials, report_trials
from mlx_gateloop.experiments.variants import REFERENCE, title
from mlx_gateloop.files import replacing
from mlx_gateloop.io import load_model
from mlx_gateloop.plots import figures
from mlx_gateloop.tables import markdown_table
from mlx_gateloop.train.source import TaskSource
from mlx_gateloop.train.start import tokens_per_step
from mlx_gateloop.watch import trace_of

# Accuracy on Memory Horizon: paper, section 5.1, figure 6.
CLAIMS = {("memory-horizon", "paper"): {"data_controlled": "0.43", "fixed": "0.25"}}


def write_report(out: Path, experiment: Experiment, tasks: Sequence[Task], command: str) -> None:
    """Compare the runs in `out/runs`, finished or not; without runs, write nothing.

    Args:
        out: see `experiments.run`; gets results.json, results.md and the figures.
        experiment: the experiment.
        tasks: its samples, of each draw.
        command: the command line.
    """
    every = read_runs(out)
    if not every:
        return
    runs = counted(every)
    environment, measure = facts(command), measure_of(experiment.name)
    states = _states(out, experiment, tasks[0], runs)
    drawn = sorted({r["seed"] % len(tasks) for results in runs.values() for r in results})
    marks = mean_scores([tasks[draw] for draw in drawn])
    curves = read_curves(out, runs, measure)
    tree = {
        "experiment": asdict(experiment),
        "environment": environment,
        "oracles": marks,
        "curves": curves,
        "models": {model: _summary(results, states[model]) for model, results in runs.items()},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }
    _write(out / "results.json", json.dumps(tree))
    text = [
        f"# {experiment.name}, preset {experiment.preset}{_differs(experiment)}",
        markdown_table(["", ""], [*environment.items(), *made(every), *_configuration(experiment)]),
        *_test_results(experiment, tasks[0], runs, states),
        *left_out(experiment, every, runs),
        *listed_leads(runs, measure),
        "Scores of simple strategies on the same test samples:",
        markdown_table(
            ["strategy", "accuracy"], [[name, f"{value:.3f}"] for name, value in marks.items()]
        ),
        *report_trials(experiment, out),
        f"## Accuracy over the {measure.span}",
        _by_span(runs),
        "## Speed of learning",
        f"Mean {measure.name} on validation data, after the steps named. The learning rate "
        "falls to zero over all steps, so a shorter run would end at other values.",
        speed_of_learning(runs, curves),
        *report_resets(runs),
        *_draw(out, experiment, runs, curves, tasks),
    ]
    _write(out / "results.md", "\n\n".join(text))


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def _differs(experiment: Experiment) -> str:
    """The differences between the runs and the preset's, for the title."""
    parts = [
        ("changed", not is_preset(experiment)),
        ("tuned", experiment.trials),
        ("with another experiment's settings", experiment.settings),
    ]
    return "".join(f", {text}" for text, there in parts if there)


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


def _configuration(experiment: Experiment) -> list[tuple[str, str]]:
    width = (
        f"inner width chosen for as many parameters as the {title(REFERENCE)} model"
        if experiment.equal_parameters
        else "the same inner width; parameters differ"
    )
    parts = {"task": experiment.task, "training": experiment.train}
    return [
        *(
            (name, ", ".join(f"{k} {v}" for k, v in part.items()) or "the defaults")
            for name, part in parts.items()
        ),
        ("models", width),
    ]


def _states(out: Path, experiment: Experiment, task: Task, runs: Runs) -> dict[str, int | None]:
    """The numbers that each model keeps in a layer."""
    configs = {m: experiment.config(task, m, 0, best(experiment, out, m)) for m in runs}
    return {m: config.model_args(task.vocab_size).state_size for m, config in configs.items()}


def _test_results(
    experiment: Experiment, task: Task, runs: Runs, states: dict[str, int | None]
) -> list[str]:
    as_named = not _differs(experiment)
    claims = CLAIMS.get((experiment.name, experiment.preset), {}) if as_named else {}
    planned = _preset_steps(experiment, task) if as_named else None
    return [
        "## Test results",
        "Weights with the lowest validation loss; mean and standard deviation over seeds. The "
        f"draw of the data is that of the seed modulo {experiment.draws}. The state size is in "
        "numbers, complex where the transitions are. Times are those of the clock, beside whatever "
        "ran at the same time.",
        _accuracies(runs, measure_of(experiment.name), states, claims, planned),
    ]


def _preset_steps(experiment: Experiment, task: Task) -> int:
    """The number of steps of the preset's own runs on these samples."""
    preset = PRESETS[experiment.name][experiment.preset]
    config = preset.config(task, REFERENCE, 0)
    return config.total_steps(TaskSource(config, task).batches.per_epoch)


def _accuracies(
    runs: Runs,
    measure: Measure,
    states: dict[str, int | None],
    claims: dict[str, str],
    planned: int | None,
) -> str:
    rows = []
    for model, results in runs.items():
        state = states[model]
        rows.append(
            [
                title(model),
                f"{results[0]['parameters']:,}",
                "grows" if state is None else f"{state:,}",
                f"{results[0]['intermediate_size']:,}",
                _steps(results, planned),
                mean_and_spread([result["accuracy"] for result in results]),
                mean_and_spread([result["loss"] / np.log(2) for result in results]),
                ", ".join(f"{measure.of(result):.3f}" for result in results),
                f"{np.mean([result['seconds'] for result in results]):,.0f}",
                *([claims.get(model, "-")] if claims else []),
            ]
        )
    header = ["model", "parameters", "state per layer", "inner width", "steps", "accuracy"]
    header += ["bits per byte" if measure is BITS else "bits per answer", f"{measure.name} by seed"]
    header += ["training s per run", *(["the paper's claim"] if claims else [])]
    return markdown_table(header, rows)


def _steps(results: list[dict[str, Any]], planned: int | None) -> str:
    """Format the range of steps, with the planned number if runs were interrupted or shortened."""
    steps = sorted({result["steps"] for result in results})
    total = results[0]["total_steps"]
    planned = max(planned or 0, total)
    is_whole = planned == total and all(result["finished"] for result in results)
    part = "" if is_whole else f" **of {planned:,}**"
    return "-".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1]))) + part


def _by_span(runs: Runs) -> str:
    names, accuracies = accuracy_by_span(runs)
    rows = [[title(model), *values] for model, values in accuracies.items()]
    return markdown_table(["model", *names], rows)


def _draw(
    out: Path, experiment: Experiment, runs: Runs, curves: Curves, tasks: Sequence[Task]
) -> list[str]:
    """Draw the figures and return the Markdown that shows them."""
    measure = measure_of(experiment.name)
    drawn = ["## Figures"]

    def show(name: str, text: str) -> Path:
        drawn.append(f"![{text}]({name})")
        return out / name

    for name, text in draw_records(out, runs, curves, measure).items():
        show(name, text)
    if measure is BITS:
        path = show("bits.png", "Bits per byte over bytes read and time")
        logs = {line(model): paths for model, paths in log_paths(out, runs).items()}
        figures.compression(logs, tokens_per_step(experiment.config(tasks[0], REFERENCE, 0)), path)
    for model, results in runs.items():
        task = tasks[results[0]["seed"] % len(tasks)]
        tokens = task.test.inputs[0]
        marks = np.flatnonzero(tokens == task.marker).tolist()
        trace = trace_of(load_model(out / "runs" / f"{model}-{results[0]['seed']}"), tokens)
        if trace.tokens:
            path = show(f"transitions-{model}.png", f"State transitions, {title(model)}")
            figures.transitions(trace, marks, path)
    return drawn
