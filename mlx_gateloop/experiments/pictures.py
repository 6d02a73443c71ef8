"""The pictures of an experiment that are drawn from its records alone."""

from pathlib import Path

from mlx_gateloop.experiments.curves import Curves
from mlx_gateloop.experiments.measure import Measure
from mlx_gateloop.experiments.results import Runs, counts_by_span
from mlx_gateloop.experiments.variants import VARIANTS, title
from mlx_gateloop.plots import figures
from mlx_gateloop.plots.style import Line


def line(model: str) -> Line:
    """The line of a model, the same in all pictures."""
    return Line(title(model), (*VARIANTS, model).index(model))


def draw_records(out: Path, runs: Runs, curves: Curves, measure: Measure) -> dict[str, str]:
    """Draw accuracy over span, the curves of learning, and the accuracies of all runs.

    Args:
        out: The folder for the pictures; those that it has are replaced.
        runs: Each model's results.
        curves: Each model's curves; a model may have none.
        measure: The figure.

    Returns:
        The names of the files, and what they show.
    """
    models = sorted(runs, key=lambda model: line(model).number)
    counts = counts_by_span(runs)
    drawn = {"accuracy-over-span.png": "Accuracy over span"}
    spans = {line(model): counts[model] for model in models}
    figures.accuracy_over_span(spans, measure.span, out / "accuracy-over-span.png")
    if learning := {line(model): curves[model] for model in models if curves.get(model)}:
        drawn["training-curves.png"] = "Training curves"
        figures.learning(learning, measure.name, out / "training-curves.png")
    drawn["accuracies.png"] = "Test accuracy of all runs"
    accuracies = {line(model): [r["accuracy"] for r in runs[model]] for model in models}
    figures.accuracies(accuracies, out / "accuracies.png")
    return drawn
