"""The tables and pictures of docs/results.md that compare models, from the records.

    python benchmarks/comparisons.py benchmarks/results/experiments/recall-4000 --beyond 8

prints the table of an experiment, from its results.json. Several folders are the parts of one
experiment, each with other models; options of the training that not all have stand after the
models' names. Finished runs count.

    python benchmarks/comparisons.py benchmarks/results/experiments/recall-4000 --pictures pictures

draws accuracy over span, the curves of learning and, of a text, bits per byte.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from embedded_models.arguments import errors_in_one_line

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.measure import interval, mean_and_spread, measure_of
from mlx_gateloop.experiments.records import read_results
from mlx_gateloop.experiments.report import draw_records, size_text
from mlx_gateloop.experiments.results import by_model
from mlx_gateloop.experiments.variants import REFERENCE, title
from mlx_gateloop.io.tables import markdown_table

# What the parts of an experiment have in common.
SHARED = ("name", "preset", "task", "seeds", "draws", "equal_parameters", "data", "tokens_per_step")


def read_parts(folders: Sequence[Path]) -> dict[str, Any]:
    """Read the results of an experiment that was made in one folder or in several."""
    whole, *others = parts = [*map(read_results, folders)]
    trains = [part["experiment"]["train"] for part in parts]
    trains = [train | {"weights": "weights" in train} for train in trains]  # else a folder's name
    options = [{*map(_option, train.items())} for train in trains]
    for part, own in zip(parts, options, strict=True):
        _add_to_names(part, sorted(own - set.intersection(*options)))
    for folder, part in zip(folders[1:], others, strict=True):
        for key in SHARED:
            if (part["experiment"] | part).get(key) != (whole["experiment"] | whole).get(key):
                raise InputError(f"{folder}: differs from {folders[0]} in {key}; leave it out")
        if both := sorted(part["models"].keys() & whole["models"].keys()):
            raise InputError(f"{folder}: has {both[0]}, as a folder before it; leave one out")
        whole["models"] |= part["models"]
        whole["curves"] |= part["curves"]
        whole["runs"] += part["runs"]
    return whole


def _option(pair: tuple[str, Any]) -> tuple[str, Any]:
    key, value = pair
    return key, json.dumps(value) if isinstance(value, list) else value


def _add_to_names(part: Mapping[str, Any], options: Sequence[tuple[str, object]]) -> None:
    more = "".join(f", {key.split('.')[-1]} {value}" for key, value in options)
    for models in (part["models"], part["curves"]):
        for model in [*models]:
            models[model + more] = models.pop(model)
    for run in part["runs"]:
        run["model"] += more


def _name(model: str) -> str:
    return model.split(", ")[0]


def table(tree: Mapping[str, Any], beyond: int | None = None, reference: str = REFERENCE) -> str:
    """Compare the models of an experiment in a Markdown table, the best one first.

    Accuracies above the span `beyond` are tabulated too.
    """
    measure = measure_of(tree["experiment"]["name"])
    runs = by_model([result for result in tree["runs"] if result["finished"]])
    sign = 1 if measure.is_loss else -1
    means = {m: np.mean([*measure.by_seed(results, sign).values()]) for m, results in runs.items()}
    leads = measure.leads(runs, reference)
    header = ["model", "state per layer", measure.name]
    header += [] if beyond is None else [f"beyond {beyond} inputs"]
    rows = [
        [
            title(model),
            size_text(tree["models"][model]["state_size"]),
            mean_and_spread([*measure.by_seed(results).values()]),
            *([] if beyond is None else [f"{_beyond(results, beyond):.3f}"]),
            _lead(leads.get(model, [])),
        ]
        for model, results in sorted(runs.items(), key=lambda pair: means[pair[0]])
    ]
    return markdown_table([*header, f"{title(reference)} is ahead by (95%)"], rows)


def _beyond(results: Sequence[Mapping[str, Any]], span: int) -> float:
    """The accuracy above a span, a mean over the runs as all figures of the table."""
    shares = [
        sum(result["right_by_span"][span + 1 :]) / sum(result["asked_by_span"][span + 1 :])
        for result in results
    ]
    return float(np.mean(shares))


def _lead(leads: list[float]) -> str:
    return f"{np.mean(leads):.3f}{interval(leads)}".replace("95%: ", "") if leads else ""


@errors_in_one_line()
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="folder",
        help="of an experiment, with its results.json; of one made in parts, all of them",
    )
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--beyond", type=int, help="tabulate the accuracy above this span")
    tables.add_argument(
        "--pictures", type=Path, metavar="DIR", help="draw pictures into this folder instead"
    )
    parser.add_argument(
        "--models",
        type=lambda text: [name for name in text.split(",") if name],
        metavar="NAME,NAME",
        help="only these models; default: all",
    )
    parser.add_argument(
        "--reference", help=f"the model that a table's leads are of (default: {REFERENCE})"
    )
    given = parser.parse_args()
    tree = read_parts(given.folders)
    if given.reference is not None and given.pictures is not None:
        parser.error("--reference: tables alone have leads of another model; leave it out")
    if not any(run["finished"] for run in tree["runs"]):
        parser.error(f"{given.folders[0]}: no run is finished; --resume the experiment")
    if given.models is not None:
        known = dict.fromkeys(map(_name, tree["models"]))
        if unknown := [name for name in given.models if name not in known]:
            parser.error(f"--models: no {unknown[0]} there; choose {', '.join(known)}")
        tree["runs"] = [run for run in tree["runs"] if _name(run["model"]) in given.models]
    finished = [run for run in tree["runs"] if run["finished"]]
    models = dict.fromkeys(run["model"] for run in finished)
    if not finished:
        parser.error(f"--models: no run of {' and '.join(given.models) or 'no model'} is finished")
    if given.pictures is not None:
        try:
            given.pictures.mkdir(parents=True, exist_ok=True)
            for name in draw_records(given.pictures, tree):
                print(given.pictures / name)
        except OSError as error:
            parser.error(f"--pictures {given.pictures}: {error.strerror}; choose another folder")
        return
    reference = given.reference or REFERENCE
    if reference not in models:
        alike = [model for model in models if _name(model) == reference]
        if len(alike) != 1:
            known = ", ".join(f'"{model}"' for model in models)
            parser.error(
                f"--reference {reference}: no finished run of it, or several; have {known}"
            )
        (reference,) = alike
    longest = min(np.flatnonzero(run["asked_by_span"]).max(initial=0) for run in finished) - 1
    if given.beyond is not None and not 0 <= given.beyond <= longest:
        parser.error(f"--beyond {given.beyond}: expected 0 to {longest}")
    print(table(tree, given.beyond, reference))


if __name__ == "__main__":
    main()
