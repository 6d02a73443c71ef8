"""The report of an experiment: results.json, results.md and figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.bench.machine import facts
from mlx_gateloop.data.oracles import mean_scores
from mlx_gateloop.data.task import Task
from mlx_gateloop.experiments.curves import curve, log_paths, speed_of_learning
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import (
    BITS,
    Measure,
    listed_leads,
    mean_and_spread,
    measure_of,
)
from mlx_gateloop.experiments.presets import PRESETS, is_preset
from mlx_gateloop.experiments.resets import report_resets
from mlx_gateloop.experiments.tuning import best, read_trials, report_trials
from mlx_gateloop.experiments.variants import REFERENCE, VARIANTS
from mlx_gateloop.files import replacing
from mlx_gateloop.io import load_model
from mlx_gateloop.plots import figures
from mlx_gateloop.tables import markdown_table
from mlx_gateloop.train.source import TaskSource
from mlx_gateloop.train.start import tokens_per_step
from mlx_gateloop.watch import trace_of

# Accuracy on Memory Horizon: paper, section 5.1, figure 6.
CLAIMS = {("memory-horizon", "paper"): {"data_controlled": "0.43", "fixed": "0.25"}}
# Of models whose names need explanation.
LABELS = {
    "softmax": "softmax without positions",
    **{
        f"{name}_as_published": f"{name} with constant queries and real C"
        for name in ("lru", "s4d_lin", "s4d_inv", "s5")
    },
}
Runs = dict[str, list[dict[str, Any]]]


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
    runs = {model: _counted(results) for model, results in every.items()}
    task, marks = tasks[0], mean_scores(tasks)
    environment, measure = facts(command), measure_of(experiment.name)
    states = {
        model: experiment.config(task, model, 0, best(experiment, out, model))
        .model_args(task.vocab_size)
        .state_size
        for model in runs
    }
    as_named = not _differs(experiment)
    claims = CLAIMS.get((experiment.name, experiment.preset), {}) if as_named else {}
    planned = _preset_steps(experiment, task) if as_named else None
    text = [
        f"# {experiment.name}, preset {experiment.preset}{_differs(experiment)}",
        markdown_table(
            ["", ""], [*environment.items(), *_made(every), *_configuration(experiment)]
        ),
        "## Test results",
        "Weights with the lowest validation loss; mean and standard deviation over seeds. The "
        f"draw of the data is that of the seed modulo {experiment.draws}. The state size is in "
        "numbers, complex where the transitions are. Times are those of the clock, beside whatever "
        "ran at the same time.",
        _accuracies(runs, measure, states, claims, planned),
        *_left_out(experiment, every, runs),
        *listed_leads(runs, measure),
        "Scores of simple strategies on the same test samples:",
        markdown_table(
            ["strategy", "accuracy"], [[name, f"{value:.3f}"] for name, value in marks.items()]
        ),
        *report_trials(experiment, out),
        "## Accuracy over the required memory span",
        _by_span(runs),
        "## Speed of learning",
        f"Mean {measure.name} on validation data, after the steps named. The learning rate "
        "falls to zero over all steps, so a shorter run would end at other values.",
        speed_of_learning(out, runs, measure),
        *report_resets(runs),
        *_draw(out, experiment, runs, tasks),
    ]
    tree = {
        "experiment": asdict(experiment),
        "environment": environment,
        "oracles": marks,
        "curves": {
            model: [curve(path, measure) for path in paths]
            for model, paths in log_paths(out, runs).items()
        },
        "models": {model: _summary(results, states[model]) for model, results in runs.items()},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }
    for name, content in (("results.json", json.dumps(tree)), ("results.md", "\n\n".join(text))):
        with replacing(out / name) as partial:
            partial.write_text(f"{content}\n", encoding="utf-8")


def read_runs(out: Path) -> Runs:
    """Read the results of each model, in the order of `VARIANTS`, sorted by seed."""
    results = [
        json.loads(file.read_text(encoding="utf-8")) for file in out.glob("runs/*/test.json")
    ]
    results.sort(key=lambda result: result["seed"])
    runs = {model: [r for r in results if r["model"] == model] for model in VARIANTS}
    return {model: results for model, results in runs.items() if results}


def counts_by_span(runs: Runs) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """The numbers of asked and of right answers of each run, by span; all of one length."""
    counts = {
        model: [(result["asked_by_span"], result["right_by_span"]) for result in results]
        for model, results in runs.items()
    }
    longest = max(len(asked) for pairs in counts.values() for asked, _ in pairs)

    def padded(count: list[int]) -> np.ndarray:
        return np.pad(count, (0, longest - len(count)))

    return {
        model: [(padded(asked), padded(right)) for asked, right in pairs]
        for model, pairs in counts.items()
    }


def _counted(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the finished runs of a model, or all if none is finished."""
    return [result for result in results if result["finished"]] or results


def _differs(experiment: Experiment) -> str:
    """What the runs have that the preset's do not, for the title."""
    parts = [
        ("changed", not is_preset(experiment)),
        ("tuned", experiment.trials),
        ("with another experiment's settings", experiment.settings),
    ]
    return "".join(f", {text}" for text, there in parts if there)


def _made(every: Runs) -> list[tuple[str, str]]:
    """When, where and with which versions the runs were made, as far as they say it."""
    made = [result["made"] for results in every.values() for result in results if "made" in result]
    if not made:
        return []
    dates = sorted(each["date"] for each in made)
    rows = [("runs ended", " to ".join(dict.fromkeys((dates[0], dates[-1]))))]
    for key in ("CPU", "versions"):
        rows.append((f"{key} of the runs", "; ".join(dict.fromkeys(each[key] for each in made))))
    return rows


def _left_out(experiment: Experiment, every: Runs, counted: Runs) -> list[str]:
    """Name the models without runs, the runs that do not count, and those that diverged."""

    def named(text: str, results: list[dict[str, Any]]) -> list[str]:
        names = ", ".join(f"{result['model']}-{result['seed']}" for result in results)
        return [f"{text}: {names}."] if results else []

    without = [model for model in experiment.models if model not in every]
    missing = [r for model, results in every.items() for r in results if r not in counted[model]]
    diverged = [r for results in counted.values() for r in results if r.get("diverged")]
    return [
        *([f"Without runs: {', '.join(without)}."] if without else []),
        *named("Left out, as they are not finished", missing),
        *named("Diverged, and tested with the best weights before that", diverged),
    ]


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
        f"inner width chosen for as many parameters as {REFERENCE}"
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
                LABELS.get(model, model),
                f"{results[0]['parameters']:,}",
                "grows" if state is None else f"{state:,}",
                f"{results[0]['intermediate_size']:,}",
                _steps(results, planned),
                mean_and_spread([result["accuracy"] for result in results]),
                mean_and_spread([result["loss"] / np.log(2) for result in results]),
                ", ".join(f"{measure.of(result):.3f}" for result in results),
                f"{np.mean([result['seconds'] for result in results]):,.0f}",
                claims.get(model, "-"),
            ]
        )
    header = ["model", "parameters", "state a layer", "inner width", "steps", "accuracy"]
    header += ["bits an answer", f"{measure.name} by seed", "training s a run", "the paper's claim"]
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
    """Tabulate accuracy in spans 0, 1, 2, 3-4, 5-8, ...: right over asked, all seeds together."""
    header, rows = ["model"], []
    for model, counts in counts_by_span(runs).items():
        asked, right = np.sum(counts, axis=0)
        edges = [0, 1, *(2 ** np.arange(int(np.ceil(np.log2(max(len(asked), 2)))) + 1) + 1)]
        header, row = ["model"], [LABELS.get(model, model)]
        for low, high in pairwise(edges):
            if count := asked[low:high].sum():
                last = min(high, len(asked)) - 1
                header.append(f"{low}" if low == last else f"{low}-{last}")
                row.append(f"{right[low:high].sum() / count:.3f}")
        rows.append(row)
    return markdown_table(header, rows)


def _draw(out: Path, experiment: Experiment, runs: Runs, tasks: Sequence[Task]) -> list[str]:
    """Draw the figures and return the Markdown that shows them."""
    drawn = ["## Figures"]

    def show(name: str, title: str) -> Path:
        drawn.append(f"![{title}]({name})")
        return out / name

    counts = counts_by_span(runs)
    figures.accuracy_over_span(counts, show("accuracy-over-span.png", "Accuracy over span"))
    logs = log_paths(out, runs)
    figures.compared_curves(logs, show("training-curves.png", "Training curves"))
    if measure_of(experiment.name) is BITS:
        path = show("bits.png", "Bits a byte over bytes read and time")
        figures.compression(logs, tokens_per_step(experiment.config(tasks[0], REFERENCE, 0)), path)
    accuracies = {model: [r["accuracy"] for r in results] for model, results in runs.items()}
    figures.accuracies(accuracies, show("accuracies.png", "Test accuracy of all runs"))
    for model, results in runs.items():
        task = tasks[results[0]["seed"] % len(tasks)]
        tokens = task.test.inputs[0]
        marks = np.flatnonzero(tokens == task.marker).tolist()
        trace = trace_of(load_model(out / "runs" / f"{model}-{results[0]['seed']}"), tokens)
        if trace.tokens:
            path = show(f"transitions-{model}.png", f"State transitions, {model}")
            figures.transitions(trace, marks, path)
    return drawn
