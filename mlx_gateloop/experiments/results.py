"""The results of an experiment's runs and their curves: which count, and how they were made."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import Measure
from mlx_gateloop.experiments.records import RunRecord, read_record
from mlx_gateloop.experiments.variants import VARIANTS

LOG = "log.jsonl"
Runs = dict[str, list[dict[str, Any]]]  # by model
Curve = list[tuple[int, float]]  # the steps of a run's validations, and their figures


def read_runs(out: Path) -> Runs:
    """Read the results of each model, in the order of `VARIANTS`, sorted by seed."""
    records = [read_record(file, RunRecord) for file in out.glob("runs/*/test.json")]
    return by_model([record for record in records if record and record["model"] in VARIANTS])


def by_model(results: Sequence[dict[str, Any]]) -> Runs:
    """Group records by model, as `read_runs` sorts them; unknown models last."""
    ranked = sorted(results, key=lambda result: result["seed"])
    models = dict.fromkeys((*VARIANTS, *(result["model"] for result in ranked)))
    runs = {model: [r for r in ranked if r["model"] == model] for model in models}
    return {model: results for model, results in runs.items() if results}


def counts_by_span(runs: Runs) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """The numbers of asked and of right answers of each run, by span; all of one length."""
    longest = max(len(r["asked_by_span"]) for results in runs.values() for r in results)

    def padded(count: list[int]) -> np.ndarray:
        return np.pad(count, (0, longest - len(count)))

    return {
        model: [(padded(r["asked_by_span"]), padded(r["right_by_span"])) for r in results]
        for model, results in runs.items()
    }


def accuracy_by_span(runs: Runs) -> tuple[list[str], dict[str, list[str]]]:
    """Format accuracies of all seeds in groups of spans: the names, and each model's."""
    counts = {model: np.sum(pairs, axis=0) for model, pairs in counts_by_span(runs).items()}
    length = next(len(asked) for asked, _ in counts.values())
    first = [1, *(2 ** np.arange(length.bit_length()) + 1)]
    groups = [
        (low, high)
        for low, high in pairwise([0, *(edge for edge in first if edge < length), length])
        if any(asked[low:high].any() for asked, _ in counts.values())
    ]
    names = [f"{low}" if low + 1 == high else f"{low}-{high - 1}" for low, high in groups]
    return names, {
        model: [_share(asked[low:high].sum(), right[low:high].sum()) for low, high in groups]
        for model, (asked, right) in counts.items()
    }


def _share(asked: int, right: int) -> str:
    return f"{right / asked:.3f}" if asked else "-"


def counted(every: Runs) -> Runs:
    """The finished runs of each model, or all if none is finished."""
    return {
        model: [result for result in results if result["finished"]] or results
        for model, results in every.items()
    }


def made(every: Runs) -> list[tuple[str, str]]:
    """The dates, machines and versions of the runs."""
    runs = [result for results in every.values() for result in results]
    if not (records := [result["made"] for result in runs if result.get("made")]):
        return []
    dates = sorted(record["date"] for record in records)
    rows = [("runs ended", " to ".join(dict.fromkeys((dates[0], dates[-1]))))]
    for key in ("CPU", "versions"):
        rows.append((f"{key} of the runs", "; ".join(dict.fromkeys(r[key] for r in records))))
    return rows


def left_out(experiment: Experiment, every: Runs, runs: Runs) -> list[str]:
    """Name the runs that are missing, those that do not count, and those that diverged."""

    def named(text: str, results: list[dict[str, Any]]) -> list[str]:
        names = ", ".join(f"{result['model']}-{result['seed']}" for result in results)
        return [f"{text}: {names}."] if results else []

    known = {model: {result["seed"] for result in results} for model, results in every.items()}
    missing = [
        {"model": model, "seed": seed}
        for model in experiment.models
        for seed in sorted({*range(experiment.seeds)} - known.get(model, set()))
    ]
    unfinished = [r for model, results in every.items() for r in results if r not in runs[model]]
    diverged = [r for results in runs.values() for r in results if r.get("diverged")]
    return [
        *named("Without a result", missing),
        *named("Left out, as they are not finished", unfinished),
        *named("Diverged, and tested with the best weights before that", diverged),
    ]


def find_curve(tree: Mapping[str, Any], run: Mapping[str, Any]) -> Curve:
    """Find the curve of a run in what results.json holds; empty if it has none."""
    model, runs = run["model"], counted(by_model(tree["runs"]))
    pairs = zip(runs.get(model, []), tree["curves"].get(model, []), strict=False)
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
