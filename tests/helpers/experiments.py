"""Experiments of seconds, and what they wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.presets import PRESETS

from .training import TINY_EXPERIMENT

RUNNING_SUM = PRESETS["memory-horizon"]["running_sum"]
SHORT = TINY_EXPERIMENT | {"steps": 4, "eval_every": 2, "data.batch_size": 32}


def tiny(
    name: str = "memory-horizon",
    preset: str = "running_sum",
    seeds: int = 2,
    models: Sequence[str] | None = None,
    equal: bool = False,
    **changes: object,
) -> Experiment:
    """Make an experiment; `__` in the name of a change stands for a point of its key."""
    settings = TINY_EXPERIMENT | {key.replace("__", "."): v for key, v in changes.items()}
    return PRESETS[name][preset].changed_by(settings, seeds, models, equal)


def tuned(**others: Any) -> Experiment:
    """Make an experiment with three trials for each model."""
    return RUNNING_SUM.changed_by(SHORT, **{"seeds": 1, "draws": 1, "trials": 3, **others})


def raw_results(out: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((out / "results.json").read_text())
    return tree


def results(out: Path) -> list[dict[str, Any]]:
    """Read the measurements, without times."""
    times = ("seconds", "made")
    runs = raw_results(out)["runs"]
    return [{k: v for k, v in result.items() if k not in times} for result in runs]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
