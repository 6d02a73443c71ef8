"""The results of an experiment's runs: which there are, which count, and how they were made."""

from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.runs import read_record
from mlx_gateloop.experiments.variants import VARIANTS

Runs = dict[str, list[dict[str, Any]]]  # by model


def read_runs(out: Path) -> Runs:
    """Read the results of each model, in the order of `VARIANTS`, sorted by seed."""
    records = [read_record(file) for file in out.glob("runs/*/test.json")]
    results = [record for record in records if record is not None]
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


def counted(every: Runs) -> Runs:
    """The finished runs of each model, or all if none is finished."""
    return {
        model: [result for result in results if result["finished"]] or results
        for model, results in every.items()
    }


def made(every: Runs) -> list[tuple[str, str]]:
    """The dates, machines and versions of the runs, as far as they say them."""
    runs = [result for results in every.values() for result in results]
    records = [result["made"] for result in runs if "made" in result]
    if not records:
        return []
    dates = sorted(each["date"] for each in records)
    others = len(runs) - len(records)
    earlier = f"; {others} of {len(runs)}, of an older version, do not say when" if others else ""
    rows = [("runs ended", " to ".join(dict.fromkeys((dates[0], dates[-1]))) + earlier)]
    for key in ("CPU", "versions"):
        rows.append((f"{key} of the runs", "; ".join(dict.fromkeys(each[key] for each in records))))
    return rows


def left_out(experiment: Experiment, every: Runs, runs: Runs) -> list[str]:
    """Name the runs that are missing, those that do not count, and those that diverged."""

    def named(text: str, results: list[dict[str, Any]]) -> list[str]:
        names = ", ".join(f"{result['model']}-{result['seed']}" for result in results)
        return [f"{text}: {names}."] if results else []

    known = {model: {result["seed"] for result in results} for model, results in every.items()}
    none = [
        {"model": model, "seed": seed}
        for model in experiment.models
        for seed in sorted({*range(experiment.seeds)} - known.get(model, set()))
    ]
    missing = [r for model, results in every.items() for r in results if r not in runs[model]]
    diverged = [r for results in runs.values() for r in results if r.get("diverged")]
    return [
        *named("Without a result", none),
        *named("Left out, as they are not finished", missing),
        *named("Diverged, and tested with the best weights before that", diverged),
    ]
