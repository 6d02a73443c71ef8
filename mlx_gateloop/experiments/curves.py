"""Accuracy on validation data while models learn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.tables import markdown_table

PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the steps, at which accuracies are tabulated


def log_paths(out: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Path]]:
    """The log of each model's runs.

    Args:
        out: The experiment's directory.
        runs: Each model's results.
    """
    return {
        model: [out / "runs" / f"{model}-{r['seed']}" / "log.jsonl" for r in results]
        for model, results in runs.items()
    }


def speed_of_learning(out: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Tabulate the mean validation accuracy after a part of the steps.

    Of each run the last validation up to that step counts. The learning rate falls to its end over
    all steps, so that a shorter run would not end at these values.

    Args:
        out: The experiment's directory.
        runs: Each model's results.
    """
    rows = []
    total = max(result["total_steps"] for results in runs.values() for result in results)
    steps = [round(part * total) for part in PARTS]
    for model, paths in log_paths(out, runs).items():
        curves = [accuracies(path) for path in paths]
        means = []
        for step in steps:
            known = [upto(curve, step) for curve in curves]
            found = [value for value in known if value is not None]
            means.append(f"{np.mean(found):.3f}" if len(found) == len(curves) else "-")
        rows.append([model, *means])
    return markdown_table(["model", *(f"{step:,} steps" for step in steps)], rows)


def accuracies(log: Path) -> list[tuple[int, float]]:
    """The steps of a run's validations, and their accuracies."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    records = [json.loads(line) for line in lines]
    return [(r["step"], r["accuracy"]) for r in records if r.get("accuracy") is not None]


def upto(curve: Sequence[tuple[int, float]], step: int) -> float | None:
    """The last accuracy up to a step; None if there is none, or the run ended before it."""
    if not curve or curve[-1][0] < step:
        return None
    return next((value for at, value in reversed(curve) if at <= step), None)
