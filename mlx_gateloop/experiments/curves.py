"""The measure on validation data while models learn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.experiments.measure import Measure
from mlx_gateloop.experiments.variants import title
from mlx_gateloop.io.tables import markdown_table

Curve = list[tuple[int, float]]  # the steps of a run's validations, and their figures
Curves = Mapping[str, Sequence[Curve]]  # by model
PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the steps, after which means are tabulated


def read_curves(
    out: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], measure: Measure
) -> Curves:
    """Read the curve of each model's runs.

    Args:
        out: The experiment's directory.
        runs: Each model's results.
        measure: The figure.
    """
    return {
        model: [
            curve(out / "runs" / f"{model}-{r['seed']}" / "log.jsonl", measure) for r in results
        ]
        for model, results in runs.items()
    }


def speed_of_learning(runs: Mapping[str, Sequence[Mapping[str, Any]]], by_model: Curves) -> str:
    """Tabulate the mean on validation data after parts of the steps.

    The last validations up to `PARTS` of the steps are taken, and their steps named. The learning
    rate falls to its end over all steps, so that a shorter run would not end at these values.

    Args:
        runs: Each model's results.
        by_model: Their curves.
    """
    rows = []
    total = max(result["total_steps"] for results in runs.values() for result in results)
    known = {at for curves in by_model.values() for points in curves for at, _ in points}
    reached = [max((at for at in known if at <= part * total), default=None) for part in PARTS]
    steps = [step for step in dict.fromkeys(reached) if step is not None]
    for model, curves in by_model.items():
        means = []
        for step in steps:
            values = [upto(points, step) for points in curves]
            found = [value for value in values if value is not None]
            means.append(f"{np.mean(found):.3f}" if len(found) == len(curves) else "-")
        rows.append([title(model), *means])
    return markdown_table(["model", *(f"{step:,} steps" for step in steps)], rows)


def curve(log: Path, measure: Measure) -> Curve:
    """Read the curve of a run from its log.

    Raises:
        InputError: The log is damaged.
    """
    records, key = read_json_lines(log) if log.exists() else [], measure.logged
    points = []
    for record in records:
        step, value = record.get("step"), record.get(key)
        if value is None:
            continue
        if not isinstance(step, int) or not isinstance(value, int | float):
            raise InputError(f"{log}: {key} {shown(value)} at step {shown(step)}; remove the run")
        points.append((step, value / measure.unit))
    return points


def upto(points: Curve, step: int) -> float | None:
    """The last value up to a step; None if there is none, or the run ended before it."""
    if not points or points[-1][0] < step:
        return None
    return next((value for at, value in reversed(points) if at <= step), None)
