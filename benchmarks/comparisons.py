"""The tables of docs/results.md that compare models, from the records of their experiments.

    python benchmarks/comparisons.py benchmarks/results/experiments/recall --beyond 8

prints the table of an experiment, from its results.json. Finished runs count. The last column is
the p-value of the lead, Student's, corrected for the number of comparisons by Holm's method.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from mlx_gateloop.experiments.measure import Measure, interval, mean_and_spread, measure_of
from mlx_gateloop.experiments.variants import REFERENCE, title
from mlx_gateloop.tables import markdown_table

Results = Sequence[Mapping[str, Any]]


def table(tree: Mapping[str, Any], beyond: int | None = None, reference: str = REFERENCE) -> str:
    """Compare the models of an experiment, the best one first.

    Args:
        tree: What results.json holds.
        beyond: The span above which accuracies are tabulated too, in inputs; without one the
            seconds of a run are.
        reference: The model whose leads over the others are tabulated.

    Returns:
        A Markdown table.
    """
    measure = measure_of(tree["experiment"]["name"])
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for result in tree["runs"]:
        if result["finished"]:
            runs.setdefault(result["model"], []).append(result)
    leads = measure.leads(runs, reference)
    chances = holm({model: _chance(values) for model, values in leads.items() if len(values) > 1})
    header = ["model", "state a layer", measure.name, "by seed"]
    header += ["s a run" if beyond is None else f"beyond {beyond} inputs"]
    header += [f"{title(reference)} is ahead by (95%)", "p"]
    rows = [
        [
            title(model),
            _size(tree["models"][model]["state_size"]),
            *_figures(results, measure, beyond),
            _lead(leads.get(model, [])),
            _p(chances.get(model)),
        ]
        for model, results in sorted(runs.items(), key=lambda pair: _rank(pair[1], measure))
    ]
    return markdown_table(header, rows)


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number by Holm's method."""
    corrected, least = {}, 0.0
    for rank, (name, chance) in enumerate(sorted(chances.items(), key=lambda pair: pair[1])):
        least = max(least, min(1.0, (len(chances) - rank) * chance))
        corrected[name] = least
    return corrected


def _chance(leads: Sequence[float]) -> float:
    """The p-value of a mean that differs from zero, Student's, of both sides."""
    error = np.std(leads, ddof=1) / np.sqrt(len(leads))
    if error == 0:
        return 0.0 if np.any(leads) else 1.0
    return 2 * float(stdtr(len(leads) - 1, -abs(np.mean(leads)) / error))


def _size(state: int | None) -> str:
    return "grows" if state is None else f"{state:,}"


def _rank(results: Results, measure: Measure) -> float:
    mean = float(np.mean([measure.of(result) for result in results]))
    return mean if measure.is_loss else -mean


def _figures(results: Results, measure: Measure, beyond: int | None) -> list[str]:
    values = [measure.of(result) for result in results]
    if beyond is None:
        last = f"{np.mean([result['seconds'] for result in results]):.0f}"
    else:
        asked, right = (
            sum(sum(result[key][beyond + 1 :]) for result in results)
            for key in ("asked_by_span", "right_by_span")
        )
        last = f"{right / asked:.3f}"
    return [mean_and_spread(values), ", ".join(f"{value:.3f}" for value in values), last]


def _p(chance: float | None) -> str:
    if chance is None:
        return ""
    return "< 0.001" if chance < 0.001 else f"{chance:.3f}"


def _lead(leads: list[float]) -> str:
    return f"{np.mean(leads):.3f}{interval(leads)}".replace("95%: ", "") if leads else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of an experiment, with its results.json")
    parser.add_argument("--beyond", type=int, help="tabulate the accuracy above this span")
    parser.add_argument("--reference", default=REFERENCE, help="the model that leads are of")
    given = parser.parse_args()
    file = given.folder / "results.json"
    if not file.is_file():
        parser.error(f"{file}: no such file; give the folder of an experiment")
    tree = json.loads(file.read_text("utf-8"))
    finished = [run for run in tree["runs"] if run["finished"]]
    if given.reference not in {run["model"] for run in finished}:
        parser.error(f"--reference {given.reference}: no finished run of it; choose another")
    longest = min(int(np.flatnonzero(run["asked_by_span"])[-1]) for run in finished) - 1
    if given.beyond is not None and not 0 <= given.beyond <= longest:
        parser.error(f"--beyond {given.beyond}: expected 0 to {longest}")
    print(table(tree, given.beyond, given.reference))


if __name__ == "__main__":
    main()
