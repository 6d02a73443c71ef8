"""The pictures of an experiment that are drawn from its records alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.experiments.measure import BITS, measure_of
from mlx_gateloop.experiments.results import counted, counts_by_span, runs_of
from mlx_gateloop.experiments.variants import VARIANTS, title
from mlx_gateloop.plots import figures
from mlx_gateloop.plots.style import Line

SPANS, LEARNING, RUNS, READ = (
    "accuracy-over-span.png",
    "training-curves.png",
    "accuracies.png",
    "bits.png",
)


def line(model: str) -> Line:
    """The line of a model, the same in all pictures."""
    return Line(title(model), (*VARIANTS, model).index(model))


def transitions_png(model: str) -> str:
    return f"transitions-{model}.png"


def draw_records(out: Path, tree: Mapping[str, Any]) -> list[str]:
    """Draw accuracies and curves from the tree of results.json; return the pictures' names."""
    runs, measure = counted(runs_of(tree)), measure_of(tree["experiment"]["name"])
    lines = {model: line(model) for model in runs}
    counts = {lines[model]: pairs for model, pairs in counts_by_span(runs).items()}
    figures.accuracy_over_span(counts, measure.span, out / SPANS)
    accuracies = {lines[model]: [r["accuracy"] for r in runs[model]] for model in runs}
    figures.accuracies(accuracies, out / RUNS)
    drawn = [SPANS, RUNS]
    curves = {lines[model]: tree["curves"][model] for model in runs if tree["curves"].get(model)}
    if curves:
        figures.learning(curves, measure.name, out / LEARNING)
        drawn.append(LEARNING)
    if curves and measure is BITS:
        seconds = {
            lines[model]: float(np.mean([r["seconds"] / r["steps"] for r in results]))
            for model, results in runs.items()
        }
        figures.compression(curves, tree["tokens_per_step"], seconds, out / READ)
        drawn.append(READ)
    return drawn
