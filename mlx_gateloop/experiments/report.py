"""The report of an experiment: results.json, the pictures, and results.md."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.data.baselines import mean_scores
from mlx_gateloop.data.task import Task
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import (
    BITS,
    Measure,
    listed_leads,
    mean_and_spread,
    measure_of,
)
from mlx_gateloop.experiments.resets import report_resets
from mlx_gateloop.experiments.results import (
    LOG,
    Runs,
    accuracy_by_span,
    by_model,
    counted,
    counts_by_span,
    curve,
    left_out,
    made,
    read_runs,
)
from mlx_gateloop.experiments.tuning import best, read_trials, report_trials
from mlx_gateloop.experiments.variants import REFERENCE, VARIANTS, title
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.models import load_weights
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.convolution import STATE
from mlx_gateloop.model.registered import module
from mlx_gateloop.plots import figures
from mlx_gateloop.plots.style import Line
from mlx_gateloop.train.chunks import zero_states
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
    new = replace(experiment, train={**experiment.train, "weights": None})
    configs = {m: new.config(tasks[0], m, 0, best(experiment, out, m)) for m in runs}
    shapes = {m: config.model_args(tasks[0].vocab_size) for m, config in configs.items()}
    logs = {m: [out / f"runs/{m}-{r['seed']}" / LOG for r in runs[m]] for m in runs}
    measure = measure_of(experiment.name)
    return {
        "experiment": asdict(experiment),
        "environment": facts(command),
        "oracles": mean_scores([tasks[seed % len(tasks)] for seed in seeds]),
        "tokens_per_step": tokens_per_step(new.config(tasks[0], experiment.models[0], 0)),
        "curves": {m: [curve(log, measure) for log in own] for m, own in logs.items()},
        "models": {model: {"state_size": _state_size(args)} for model, args in shapes.items()},
        "trials": {model: read_trials(experiment, out, model) for model in experiment.models},
        "runs": [result for results in every.values() for result in results],
    }


def _state_size(args: Any) -> int | None:
    """The numbers in a layer's state, complex if a is; None if it grows with the text."""
    if isinstance(args, LayerArgs):
        return args.state_size
    return zero_states(module(args.model_type).Model(args), batch=1)[0][STATE].size


def _draw(out: Path, tree: Mapping[str, Any], tasks: Sequence[Task]) -> None:
    """Draw the pictures of the records, and the transitions of each model's first run."""
    draw_records(out, tree)
    for model, results in counted(by_model(tree["runs"])).items():
        seed = results[0]["seed"]
        task, run = tasks[seed % len(tasks)], out / "runs" / f"{model}-{seed}"
        if not (run / "model.safetensors").exists():  # restored from a report
            continue
        tokens = task.test.inputs[0]
        marks = np.flatnonzero(tokens == task.marker).tolist()
        trace = trace_of(load_weights(run), tokens)
        if trace.tokens:
            figures.transitions(trace, marks, out / f"transitions-{model}.png")


def draw_records(out: Path, tree: Mapping[str, Any]) -> list[str]:
    """Draw accuracy and curves from the tree of results.json; return the pictures' names."""
    runs, measure = counted(by_model(tree["runs"])), measure_of(tree["experiment"]["name"])
    lines = lines_of(runs)
    counts = {lines[model]: pairs for model, pairs in counts_by_span(runs).items()}
    figures.accuracy_over_span(counts, measure.span, out / "accuracy-over-span.png")
    drawn = ["accuracy-over-span.png"]
    curves = {lines[model]: tree["curves"][model] for model in runs if tree["curves"].get(model)}
    if curves:
        figures.learning(curves, measure.name, out / "training-curves.png")
        drawn.append("training-curves.png")
    if curves and measure is BITS:
        seconds = {
            lines[model]: float(np.mean([r["seconds"] / max(1, r["steps"]) for r in results]))
            for model, results in runs.items()
        }
        figures.compression(curves, tree["tokens_per_step"], seconds, out / "bits.png")
        drawn.append("bits.png")
    return drawn


def lines_of(models: Iterable[str]) -> dict[str, Line]:
    """The line of each model, for those of `VARIANTS` the same in all pictures."""
    return {m: Line(title(m), n) for n, m in enumerate(dict.fromkeys((*VARIANTS, *models)))}


def report_text(tree: Mapping[str, Any], folder: Path) -> str:
    """Write the report of an experiment, the tree of results.json, with the folder's pictures."""
    experiment = Experiment.read(tree["experiment"], folder / "results.json")
    every, measure = by_model(tree["runs"]), measure_of(experiment.name)
    runs = counted(every)
    marks = [[name, f"{value:.3f}"] for name, value in tree["oracles"].items()]
    names, accuracies = accuracy_by_span(runs)
    by_span = [[title(model), *values] for model, values in accuracies.items()]
    rows = [*tree["environment"].items(), *made(every), *_configuration(experiment)]
    pictures = [f"![{file.stem}]({file.name})" for file in sorted(folder.glob("*.png"))]
    parts = [
        f"# {experiment.name}, preset {experiment.preset}",
        markdown_table(["", ""], rows),
        *_test_results(experiment, runs, tree),
        *left_out(experiment, every, runs),
        *listed_leads(runs, measure),
        "Scores of simple strategies on the same test samples:",
        markdown_table(["strategy", "accuracy"], marks),
        *report_trials(experiment, tree["trials"]),
        f"## Accuracy over the {measure.span}",
        "Shares of the answers of all seeds together.",
        markdown_table(["model", *names], by_span),
        *report_resets(runs),
        *(["## Figures", *pictures] if pictures else []),
    ]
    return "\n\n".join(parts)


def _configuration(experiment: Experiment) -> list[tuple[str, str]]:
    width = "the same inner width; parameters differ"
    if experiment.equal_parameters:
        width = f"inner width chosen for as many parameters as the {title(REFERENCE)} model"
    parts = {"task": experiment.task, "training": experiment.train}
    rows = [(name, ", ".join(f"{k} {v}" for k, v in p.items())) for name, p in parts.items()]
    return [*((name, text or "the defaults") for name, text in rows), ("models", width)]


def _test_results(experiment: Experiment, runs: Runs, tree: Mapping[str, Any]) -> list[str]:
    states = {model: summary["state_size"] for model, summary in tree["models"].items()}
    shared = " Seeds share draws, so intervals leave out the variation of the data."
    draw = f"The draw of the data is that of the seed modulo {experiment.draws}."
    return [
        "## Test results",
        "Weights with the lowest validation loss; mean and standard deviation over seeds. "
        f"{draw if experiment.draws > 1 else 'There is one draw of the data.'}"
        f"{shared if experiment.draws < experiment.seeds else ''} The state size is in "
        "numbers, complex where the transitions are. Times are those of the clock, beside whatever "
        "ran at the same time.",
        _accuracies(runs, measure_of(experiment.name), states),
    ]


def _accuracies(runs: Runs, measure: Measure, states: dict[str, int | None]) -> str:
    rows = [
        [
            title(model),
            f"{results[0]['parameters']:,}",
            size_text(states[model]),
            f"{results[0]['intermediate_size']:,}",
            _steps(results),
            mean_and_spread([result["accuracy"] for result in results]),
            mean_and_spread([result["loss"] / np.log(2) for result in results]),
            ", ".join(f"{measure.of(result):.3f}" for result in results),
            f"{np.mean([result['seconds'] for result in results]):,.0f}",
        ]
        for model, results in runs.items()
    ]
    header = ["model", "parameters", "state per layer", "inner width", "steps", "accuracy"]
    header += ["bits per byte" if measure is BITS else "bits per answer", f"{measure.name} by seed"]
    return markdown_table([*header, "training s per run"], rows)


def size_text(state: int | None) -> str:
    return "grows" if state is None else f"{state:,}"


def _steps(results: list[dict[str, Any]]) -> str:
    """Format the range of steps, with the planned number if some runs have fewer."""
    steps = sorted({result["steps"] for result in results})
    is_whole = all(result["finished"] and not result["diverged"] for result in results)
    part = "" if is_whole else f" **of {results[0]['total_steps']:,}**"
    return "-".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1]))) + part
