"""The figure by which an experiment compares its models, and differences in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_gateloop.experiments.variants import REFERENCE, title


@dataclass(frozen=True)
class Measure:
    """A figure by which models are compared."""

    name: str  # in reports
    key: str  # in a run's result, of test samples
    logged: str  # in a run's log, of validation samples
    unit: float = 1.0  # the result's or the log's value of one
    is_loss: bool = False  # less is better
    span: str = "required memory span in inputs"  # name of the spans that its answers have

    def of(self, result: Mapping[str, Any]) -> float:
        return float(result[self.key]) / self.unit

    def leads(
        self, runs: Mapping[str, Sequence[Mapping[str, Any]]], reference: str = REFERENCE
    ) -> dict[str, list[float]]:
        """The reference's leads over each other model, for the seeds that both have finished."""
        sign = -1 if self.is_loss else 1
        values = {model: self.by_seed(results, sign) for model, results in runs.items()}
        ours = values.pop(reference, {})
        return {model: differences(ours, theirs) for model, theirs in values.items()}

    def by_seed(self, results: Sequence[Mapping[str, Any]], sign: int = 1) -> dict[int, float]:
        """The values of the runs that are finished, times a sign."""
        return {result["seed"]: sign * self.of(result) for result in results if result["finished"]}


ACCURACY = Measure("accuracy", "accuracy", "accuracy")
BITS = Measure(
    "bits per byte", "loss", "validation_loss", unit=float(np.log(2)), is_loss=True,
    span="number of inputs before",
)  # fmt: skip


def measure_of(experiment: str) -> Measure:
    """The measure of an experiment by its name: a text is compressed, other tasks are answered."""
    return BITS if experiment == "text" else ACCURACY


def listed_leads(runs: Mapping[str, Sequence[Mapping[str, Any]]], measure: Measure) -> list[str]:
    """List the reference's leads over each model, with Student's interval of paired differences."""
    lines = []
    for model, leads in measure.leads(runs).items():
        if leads:
            listed = ", ".join(f"{lead:+.3f}" for lead in leads)
            lines.append(f"- over {title(model)}: {mean_difference(leads)} (by seed: {listed})")
    heading = f"Leads of the {title(REFERENCE)} model in {measure.name}:"
    return [heading, "\n".join(lines)] if lines else []


def differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """The differences between values of one seed, for the seeds that both have."""
    return [first[seed] - second[seed] for seed in first if seed in second]


def mean_difference(values: Sequence[float]) -> str:
    return f"{np.mean(values):+.3f}{interval(values)}" if values else "-"


def interval(values: Sequence[float]) -> str:
    """Format the 95% confidence interval of the mean, if there is more than one value."""
    if len(values) < 2:
        return ""
    from scipy.special import stdtrit  # scipy.stats fails where torch is kept out of imports

    half = stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values))
    low, high = np.mean(values) - half, np.mean(values) + half
    return f" (95%: {_bound(float(low))} to {_bound(float(high))})"


def _bound(value: float) -> str:
    """Format a bound so that its sign shows."""
    return f"{value:.1g}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def mean_and_spread(values: Sequence[float]) -> str:
    """Format the mean, with the sample standard deviation if there is more than one value."""
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"
