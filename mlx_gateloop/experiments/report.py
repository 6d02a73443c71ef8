"""What an experiment showed: results.json, results.md and figures."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop import figures
from mlx_gateloop.bench.machine import facts
from mlx_gateloop.bench.measure import table
from mlx_gateloop.data import oracles
from mlx_gateloop.data.task import Task
from mlx_gateloop.experiments.presets import Experiment
from mlx_gateloop.io import load_model, write_text
from mlx_gateloop.trace import trace_of

# Paper, section 5.1, table 1.
CLAIMS = {("memory-horizon", "paper"): {"data_controlled": "0.43", "fixed": "0.25"}}
# |a| of a channel that resets itself: below the one at the marker, above the other elsewhere.
FORGETS, KEEPS = 0.1, 0.8
Runs = dict[str, list[dict[str, Any]]]


def write_report(out: Path, experiment: Experiment, task: Task, command: str) -> None:
    """Compare the runs that `out/runs` holds, finished or not.

    Args:
        out: see `experiments.run`; gets results.json, results.md and the figures.
        experiment: the settings.
        task: its samples.
        command: what was typed.
    """
    runs: Runs = {}
    for file in sorted(out.glob("runs/*/test.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        runs.setdefault(result["transition"], []).append(result)
    marks = _oracles(task)
    environment = facts(command)
    text = [
        f"# {experiment.name}, preset {experiment.preset}",
        table(["", ""], [*environment.items(), *_settings(experiment)]),
        "## Test accuracy",
        "Of the weights with the lowest validation loss; mean and standard deviation over seeds.",
        _accuracies(runs, CLAIMS.get((experiment.name, experiment.preset), {})),
        *_gaps(runs),
        "What simple strategies score on the same test samples:",
        table(["strategy", "accuracy"], [[name, f"{value:.3f}"] for name, value in marks.items()]),
        "## Accuracy over the required memory span",
        _by_span(runs),
        *_resets(runs),
        *_draw(out, runs, task),
    ]
    tree = {
        "experiment": asdict(experiment),
        "environment": environment,
        "oracles": marks,
        "runs": [run for of_transition in runs.values() for run in of_transition],
    }
    write_text(out / "results.json", json.dumps(tree) + "\n")
    write_text(out / "results.md", "\n\n".join(text) + "\n")


def mean_and_spread(values: list[float]) -> str:
    """The mean, and the sample standard deviation where there is more than one value."""
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _settings(experiment: Experiment) -> list[tuple[str, str]]:
    parts = {"task": experiment.task, "training": experiment.train}
    return [
        (name, ", ".join(f"{k} {v}" for k, v in part.items()) or "the defaults")
        for name, part in parts.items()
    ]


def _oracles(task: Task) -> dict[str, float]:
    training, test = task.training, task.test
    marks = {"the commonest answer": oracles.majority(training, test)}
    marks["lookup of the last 6 inputs"] = oracles.last_inputs(training, test, 6)
    for span in 2 ** np.arange(2, np.log2(max(test.span.max(), 4))).astype(int):
        marks[f"exact up to a span of {span}"] = oracles.exact_upto(training, test, int(span))
    return marks


def _accuracies(runs: Runs, claims: dict[str, str]) -> str:
    rows = []
    for transition, results in runs.items():
        accuracies = [result["accuracy"] for result in results]
        steps = sorted({result["steps"] for result in results})
        unfinished = any(result["steps"] < result["total_steps"] for result in results)
        rows.append(
            [
                transition,
                f"{results[0]['parameters']:,}",
                "-".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1])))
                + (f" **of {results[0]['total_steps']:,}**" if unfinished else ""),
                mean_and_spread(accuracies),
                ", ".join(f"{accuracy:.3f}" for accuracy in accuracies),
                f"{np.mean([result['seconds'] for result in results]):,.0f}",
                claims.get(transition, "-"),
            ]
        )
    header = ["transition", "parameters", "steps", "accuracy", "by seed", "training s a run"]
    return table([*header, "the paper's claim"], rows)


def _gaps(runs: Runs) -> list[str]:
    """How far the data-controlled model is ahead, seed by seed, where both were trained."""
    controlled, fixed = (
        {result["seed"]: result["accuracy"] for result in runs.get(transition, [])}
        for transition in ("data_controlled", "fixed")
    )
    gaps = [controlled[seed] - fixed[seed] for seed in sorted(controlled.keys() & fixed.keys())]
    if not gaps:
        return []
    listed = ", ".join(f"{gap:+.3f}" for gap in gaps)
    return [f"data_controlled - fixed: **{mean_and_spread(gaps)}** (by seed: {listed})."]


def _by_span(runs: Runs) -> str:
    """Accuracy in spans 0, 1, 2, 3-4, 5-8, ...: right over asked, all seeds together."""
    header, rows = ["transition"], []
    for transition, results in runs.items():
        asked, right = (
            np.sum([result[key] for result in results], axis=0)
            for key in ("asked_by_span", "right_by_span")
        )
        edges = [0, 1, *(2 ** np.arange(int(np.ceil(np.log2(max(len(asked), 2)))) + 1) + 1)]
        header, row = ["transition"], [transition]
        for low, high in pairwise(edges):
            if count := asked[low:high].sum():
                last = min(high, len(asked)) - 1
                header.append(f"{low}" if low == last else f"{low}-{last}")
                row.append(f"{right[low:high].sum() / count:.3f}")
        rows.append(row)
    return table(header, rows)


def _resets(runs: Runs) -> list[str]:
    """Which channels let go at the marker and hold on elsewhere."""
    rows = []
    for transition, results in runs.items():
        for result in results:
            if result["magnitudes"] is None:
                return []
            at, elsewhere = (
                np.array(result["magnitudes"][key]) for key in ("at_marker", "elsewhere")
            )
            layer, channel = np.unravel_index((elsewhere - at).argmax(), at.shape)
            most = f"{at[layer, channel]:.3f} / {elsewhere[layer, channel]:.3f} (layer {layer + 1})"
            found = ((at < FORGETS) & (elsewhere > KEEPS)).sum(1)
            means = f"{at.mean():.3f} / {elsewhere.mean():.3f}"
            name = f"{transition}, seed {result['seed']}"
            rows.append([name, ", ".join(map(str, found)), most, means])
    header = ["run", "resetting channels by layer", "greatest contrast", "mean of all"]
    note = (
        "Mean magnitude of the state transition over test samples, channel by channel: at the "
        "marker (Memory Horizon's reset) / elsewhere. A resetting channel has below "
        f"{FORGETS} there and above {KEEPS} elsewhere."
    )
    return ["## State transitions at the marker", note, table(header, rows)]


def _draw(out: Path, runs: Runs, task: Task) -> list[str]:
    """The figures, as Markdown."""
    drawn = ["## Figures"]

    def show(name: str, title: str) -> Path:
        drawn.append(f"![{title}]({name})")
        return out / name

    counts = {
        transition: [(result["asked_by_span"], result["right_by_span"]) for result in results]
        for transition, results in runs.items()
    }
    figures.accuracy_over_span(counts, show("accuracy-over-span.png", "Accuracy over span"))
    logs = {
        transition: [out / "runs" / f"{transition}-{r['seed']}" / "log.jsonl" for r in results]
        for transition, results in runs.items()
    }
    figures.compared_curves(logs, show("training-curves.png", "Training curves"))
    tokens = task.test.inputs[0]
    marks = np.flatnonzero(tokens == task.marker).tolist()
    for transition, results in runs.items():
        model = load_model(out / "runs" / f"{transition}-{results[0]['seed']}")
        path = show(f"transitions-{transition}.png", f"State transitions, {transition}")
        figures.transitions(trace_of(model, tokens), marks, path)
    return drawn
