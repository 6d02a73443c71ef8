"""Tuning: each model tries the same Sobol set of settings, and its best validation loss decides."""

from collections.abc import Iterable, Mapping
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.experiments.experiment import TASKS, Experiment
from mlx_gateloop.experiments.records import Chosen, read_results
from mlx_gateloop.experiments.runs import Trial
from mlx_gateloop.experiments.variants import VARIANTS, title
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model.arguments import GATED, SPREAD

APART = 1009  # the draw and the seed of the trials, apart from those of the runs
RATES = 5.0  # the learning rate is within this factor of the experiment's
RATIOS = (0.03, 10.0)  # the rate of the state transitions, over the learning rate
PUBLISHED = 1 / 6  # the share of settings with the published start
SHORTEST = 2.0  # tokens, of the longest half-life at the start in the others
COUNTS = (1, 2, 4)  # numbers of heads
EDGE = 0.1  # the share of a range, by logarithm, that counts as its end


def trials(experiment: Experiment, out: Path) -> list[Trial]:
    """Return all models' trials, in OUT/trials/MODEL-NUMBER; those of a number side by side."""
    return [
        Trial(experiment, model, APART, APART, out / f"trials/{model}-{number}", chosen)
        for number in range(experiment.trials)
        for model in experiment.models
        for chosen in [settings(experiment, model, number)]
    ]


def settings(experiment: Experiment, model: str, number: int) -> dict[str, object]:
    """Compute the settings of a trial: rates, and half-lives and heads where a model has them."""
    ranges, (*point, heads) = _ranges(experiment), _points(number + 1)[number]
    point[2] = (point[2] - PUBLISHED) / (1 - PUBLISHED)  # below 0: the published start
    rate, ratio, longest = (
        low * (high / low) ** x for (low, high), x in zip(ranges.values(), point, strict=True)
    )
    found: dict[str, object] = {
        "optimizer.learning_rate": _short(rate),
        "optimizer.state_transition_learning_rate": _short(rate * ratio),
    }
    variant = VARIANTS[model]
    if variant.get("transition") in SPREAD and "longest_half_life" not in variant and point[2] >= 0:
        found["model.longest_half_life"] = _short(longest)
        if variant.get("transition") in GATED:
            found["model.input_scale"] = True
    if "num_heads" in variant:
        found["model.num_heads"] = COUNTS[int(heads * len(COUNTS))]
    return found


@cache
def _points(count: int) -> Any:
    """Return the first `count` points of the set, `[count, 4]` in [0, 1); more extend it."""
    from scipy.stats import qmc

    return qmc.Sobol(4, rng=APART).random_base2((count - 1).bit_length())[:count]


def _ranges(experiment: Experiment) -> dict[str, tuple[float, float]]:
    """The ranges of learning rate, ratio of the rates, and longest half-life."""
    rate = experiment.train.get("optimizer.learning_rate")
    if not isinstance(rate, int | float) or rate <= 0:
        expected = "expected a number above 0 to tune around"
        raise InputError(f"optimizer.learning_rate: {expected}, got {shown(rate)}")
    default = signature(TASKS[experiment.name]).parameters["length"].default
    length: Any = experiment.task.get("length", default)
    return {
        "learning_rate": (rate / RATES, rate * RATES),
        "ratio": RATIOS,
        "longest_half_life": (SHORTEST, max(float(length), 2 * SHORTEST)),
    }


def best(experiment: Experiment, out: Path, model: str) -> Chosen:
    """Return the settings of a model's best trial that did not diverge, else the preset's."""
    return _best(read_trials(experiment, out, model))


def chosen_in(out: Path, name: str) -> dict[str, Chosen]:
    """Read the settings that the trials of an experiment chose, by model with all trials."""
    tree = read_results(out)
    experiment = Experiment.read(tree["experiment"], out / "results.json")
    if experiment.name != name:
        raise InputError(f"{out}: an experiment of {experiment.name}; give one of {name}")
    if experiment.settings:
        return dict(experiment.settings)
    if not experiment.trials:
        raise InputError(f"{out}: an experiment without trials; give one made with --tune")
    chosen = {}
    for model in experiment.models:
        records = tree["trials"].get(model, [])
        whole = sum(record["finished"] for record in records) == experiment.trials
        if whole and (found := _best(records)):
            chosen[model] = found
    return chosen


def read_trials(experiment: Experiment, out: Path, model: str) -> list[dict[str, Any]]:
    """Read the records of a model's trials, by number, as far as there are any."""
    records = (trial.read() for trial in trials(experiment, out) if trial.model == model)
    return [record for record in records if record is not None]


def _best(records: Iterable[dict[str, Any]]) -> Chosen:
    known = sorted(filter(_has_loss, records), key=lambda record: record["validation_loss"])
    return dict(known[0]["settings"]) if known else {}


def _has_loss(record: Mapping[str, Any]) -> bool:
    return record["validation_loss"] is not None and not record.get("diverged")


def report_trials(experiment: Experiment, made: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Report the trials of each model, and the settings that were chosen."""
    if experiment.settings:
        rows = [
            [title(model), _listed(_effective(model, values))]
            for model, values in experiment.settings.items()
        ]
        note = "Settings that another experiment's trials chose; nothing was tried here."
        return ["## Tuning", note, markdown_table(["model", "settings"], rows)]
    if not experiment.trials:
        return []
    rows = []
    for model in experiment.models:
        records = [record for record in made.get(model, []) if record["finished"]]
        known = [record["validation_loss"] for record in records if _has_loss(record)]
        steps = sum(record["steps"] for record in records)
        chosen = _effective(model, _best(records))
        losses = [f"{loss:.4f}" for loss in (np.median(known), min(known))] if known else ["-", "-"]
        row = [title(model), str(len(records)), f"{steps:,}", str(len(records) - len(known))]
        at_an_end = ", ".join(_at_an_end(experiment, chosen)) or "-"
        rows.append([*row, *losses, _listed(chosen), at_an_end])
    header = ["model", "trials", "steps of all", "diverged", "median loss"]
    is_text = experiment.name == "text"
    overlap = "; draws of a text overlap, so trials read what runs are tested on" * is_text
    slowest, fastest = _ranges(experiment)["learning_rate"]
    note = (
        "A scrambled Sobol set of settings, the same for every model, chosen by validation loss: "
        f"learning rates from {slowest:g} to {fastest:g}, those of the state transitions "
        f"{RATIOS[0]:g} to {RATIOS[1]:g} times as high; a longest half-life at the start, where a "
        f"model learns magnitudes, but for {PUBLISHED:.0%} of the settings; and "
        f"{', '.join(map(str, COUNTS))} heads, where it has heads. At an end: in the outer "
        f"{EDGE:.0%} of a range, so that better ones may lie beyond. Trials have equal steps and a "
        f"draw of the data of their own, without its test samples{overlap}. Intervals leave out "
        "the chance in the tuning."
    )
    return ["## Tuning", note, markdown_table([*header, "best loss", "chosen", "at an end"], rows)]


def _effective(model: str, settings: Mapping[Any, object]) -> dict[str, object]:
    """Leave out the rate of transitions that have no parameters of their own."""
    learns = VARIANTS[model].get("transition") in SPREAD
    unused = set() if learns else {"optimizer.state_transition_learning_rate"}
    return {key: value for key, value in settings.items() if key not in unused}


def _at_an_end(experiment: Experiment, settings: Mapping[str, Any]) -> list[str]:
    """Name the factors with a chosen value near an end of the range."""
    values = {key.split(".")[-1]: value for key, value in settings.items()}
    if "state_transition_learning_rate" in values:
        values["ratio"] = values["state_transition_learning_rate"] / values["learning_rate"]
    return [
        name
        for name, (low, high) in _ranges(experiment).items()
        if name in values and not EDGE < np.log(values[name] / low) / np.log(high / low) < 1 - EDGE
    ]


def _listed(settings: Mapping[str, object]) -> str:
    items = (f"{key.split('.')[-1]} {value}" for key, value in settings.items())
    return ", ".join(items) or "the preset's"


def _short(value: float) -> float:
    """Round to three digits, for the tables."""
    return float(f"{value:.3g}")
