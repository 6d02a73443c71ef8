"""Experiments of seconds, and what they wrote."""

import json

from mlx_gateloop.experiments.presets import PRESETS

from .training import TINY_EXPERIMENT

RUNNING_SUM = PRESETS["memory-horizon"]["running_sum"]
SHORT = TINY_EXPERIMENT | {"steps": 4, "eval_every": 2, "data.batch_size": 32}


def tiny(name="memory-horizon", preset="running_sum", seeds=2, models=None, equal=False, **changes):
    """Make an experiment; `__` in the name of a change stands for a point of its key."""
    settings = TINY_EXPERIMENT | {key.replace("__", "."): v for key, v in changes.items()}
    runs = {"seeds": seeds, "models": models, "equal_parameters": equal}
    return PRESETS[name][preset].changed_by(settings, **runs)


def tuned(**others):
    return RUNNING_SUM.changed_by(SHORT, **{"seeds": 1, "draws": 1, "trials": 3, **others})


def raw_results(out):
    return json.loads((out / "results.json").read_text())


def results(out):
    """Read the measurements, without times."""
    runs = raw_results(out)["runs"]
    return [{k: v for k, v in result.items() if k not in ("seconds", "made")} for result in runs]


def cells(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def names(folder):
    return {path.name for path in folder.iterdir()}
