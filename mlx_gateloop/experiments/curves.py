"""The measure on validation data while models learn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.experiments.measure import Measure
from mlx_gateloop.experiments.results import Runs, counted, runs_of

LOG = "log.jsonl"
Curve = list[tuple[int, float]]  # the steps of a run's validations, and their figures
Curves = Mapping[str, Sequence[Curve]]  # by model


def read_curves(out: Path, runs: Runs, measure: Measure) -> Curves:
    """Read the curve of each model's runs in the experiment's directory."""
    return {
        model: [curve(out / "runs" / f"{model}-{r['seed']}" / LOG, measure) for r in results]
        for model, results in runs.items()
    }


def find_curve(tree: Mapping[str, Any], run: Mapping[str, Any]) -> Curve:
    """Find the curve of a run in what results.json holds; empty if it has none."""
    model = run["model"]
    pairs = zip(counted(runs_of(tree)).get(model, []), tree["curves"].get(model, []), strict=False)
    return next((curve for other, curve in pairs if other == run), [])


def write_curve(points: Curve, log: Path, measure: Measure) -> None:
    lines = [json.dumps({"step": step, measure.logged: y * measure.unit}) for step, y in points]
    log.write_text("\n".join([*lines, ""]), encoding="utf-8")


def curve(log: Path, measure: Measure) -> Curve:
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
