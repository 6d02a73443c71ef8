"""Tuning: the same random settings are tried for each model, and its best validation loss decides.

The trials of all models have equal numbers of steps. They train on a draw of the data of their own,
where the task draws it, and never see test samples.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from mlx_gateloop.model.arguments import SPREAD

APART = 1000  # the draw and the seed of the trials, apart from those of the runs
RATES = 10.0  # the learning rate is within this factor of the preset's
RATIOS = 10.0  # and that of the state transitions within this one of it
SHORTEST = 2.0  # tokens, of the longest half-life at the start
COUNTS = (1, 2, 4)  # of heads


def trials(experiment: Experiment, out: Path) -> list[Trial]:
    """Return all models' trials, in OUT/trials/MODEL-NUMBER; those of a number side by side."""
    draw = APART if "seed" in signature(TASKS[experiment.name]).parameters else 0
    return [
        Trial(
            experiment,
            model,
            APART,
            draw,
            out / "trials" / f"{model}-{number}",
            settings(experiment, model, number),
        )
        for number in range(experiment.trials)
        for model in experiment.models
    ]


def settings(experiment: Experiment, model: str, number: int) -> dict[str, object]:
    """Draw the settings of a trial: rates, and what a model has of half-lives and heads.

    All models have the same learning rates under the same number, and all half-lives and numbers of
    heads are the same for those that have any.
    """
    generator = np.random.default_rng((APART, number))
    power, ratio, half_life, chance, heads = generator.uniform((-1, -1, 0, 0, 0), (1, 1, 1, 1, 1))
    rate = _preset_rate(experiment) * RATES**power
    found: dict[str, object] = {
        "optimizer.learning_rate": _short(rate),
        "optimizer.state_transition_learning_rate": _short(rate * RATIOS**ratio),
    }
    variant = VARIANTS[model]
    if variant["transition"] in SPREAD and chance < 0.5:
        longest = max(float(_length(experiment)), SHORTEST)
        found["model.longest_half_life"] = _short(SHORTEST * (longest / SHORTEST) ** half_life)
    if "num_heads" in variant:
        found["model.num_heads"] = COUNTS[int(heads * len(COUNTS))]
    return found


def best(experiment: Experiment, out: Path, model: str) -> Chosen:
    """Return the settings of a model's best trial so far, the preset's if there is none.

    A trial that diverged does not count, whatever its loss was before.
    """
    return _best(read_trials(experiment, out, model))


def chosen_in(out: Path, name: str) -> dict[str, Chosen]:
    """Read the settings by model that the trials of an experiment chose, or that it was given.

    Left out are models without all trials, and those of which each diverged.
    """
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
    mine = [trial for trial in trials(experiment, out) if trial.model == model]
    return [record for trial in mine if (record := trial.read()) is not None]


def _best(records: Iterable[dict[str, Any]]) -> Chosen:
    known = [record for record in records if _has_loss(record)]
    if not known:
        return {}
    return dict(min(known, key=lambda record: record["validation_loss"])["settings"])


def _has_loss(record: Mapping[str, Any]) -> bool:
    return record["validation_loss"] is not None and not record.get("diverged")


def report_trials(
    experiment: Experiment, made: Mapping[str, Sequence[dict[str, Any]]]
) -> list[str]:
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
        records = made.get(model, [])
        known = [record["validation_loss"] for record in records if _has_loss(record)]
        rows.append(
            [
                title(model),
                f"{len(records)}",
                f"{sum(record['steps'] for record in records):,}",
                f"{len(records) - len(known)}",
                f"{np.median(known):.4f}" if known else "-",
                f"{min(known):.4f}" if known else "-",
                _listed(_effective(model, _best(records))),
            ]
        )
    header = ["model", "trials", "steps of all", "diverged", "median loss"]
    note = (
        "The same random settings for every model, chosen by validation loss: learning rates "
        f"within a factor {RATES:g} of the preset's, those of the state transitions within "
        f"{RATIOS:g} of that; in about half of the trials a longest half-life at the start, where "
        f"a model learns magnitudes; and {', '.join(map(str, COUNTS))} heads, where it has heads. "
        "Trials have the runs' steps, a draw of the data of their own where the task draws it, and "
        "no test samples. Intervals leave out the chance in the tuning."
    )
    return ["## Tuning", note, markdown_table([*header, "best loss", "chosen"], rows)]


def _effective(model: str, settings: Mapping[Any, object]) -> dict[str, object]:
    """Leave out the rate of transitions that have no parameters."""
    learns = VARIANTS[model]["transition"] in SPREAD
    unused = set() if learns else {"optimizer.state_transition_learning_rate"}
    return {key: value for key, value in settings.items() if key not in unused}


def _listed(settings: Mapping[str, object]) -> str:
    items = (f"{key.split('.')[-1]} {value}" for key, value in settings.items())
    return ", ".join(items) or "the preset's"


def _preset_rate(experiment: Experiment) -> float:
    rate = experiment.train.get("optimizer.learning_rate")
    if not isinstance(rate, int | float):
        raise InputError(
            f"optimizer.learning_rate: expected a number to tune around, got {shown(rate)}"
        )
    return rate


def _length(experiment: Experiment) -> Any:
    default = signature(TASKS[experiment.name]).parameters["length"].default
    return experiment.task.get("length", default)


def _short(value: float) -> float:
    """Round to three digits, for the tables."""
    return float(f"{value:.3g}")
