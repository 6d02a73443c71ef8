import numpy as np
import pytest

from mlx_gateloop.experiments.measure import ACCURACY, BITS, interval, listed_leads


def results(*accuracies, first=0):
    """Results of seeds from `first` on; the loss is such that bits are 1 - accuracy."""
    return [
        {"seed": seed, "accuracy": accuracy, "loss": (1 - accuracy) * np.log(2), "finished": True}
        for seed, accuracy in enumerate(accuracies, first)
    ]


RUNS = {
    "data_controlled": results(0.9, 0.8), "fixed": results(0.5, 0.7, 0.1),
    "real_gates": results(0.75, first=1), "lru": results(0.5, first=2),
}  # fmt: skip


@pytest.mark.parametrize("measure", [ACCURACY, BITS])  # fewer bits are a lead
def test_leads_are_between_the_same_seeds_of_finished_runs(measure):
    unfinished = {
        model: [*RUNS[model], RUNS[model][0] | {"seed": 9, "finished": model != "fixed"}]
        for model in ("data_controlled", "fixed")
    }
    _, lines = listed_leads(RUNS | unfinished, measure)
    assert lines.splitlines() == [
        "- over fixed: +0.250 (95%: -1.656 to 2.156) (by seed: +0.400, +0.100)",
        "- over real gates: +0.050 (by seed: +0.050)",
    ]
    assert listed_leads({"fixed": RUNS["fixed"]}, measure) == []
    assert listed_leads({"data_controlled": RUNS["data_controlled"]}, measure) == []


def test_the_interval_is_students():
    # t(0.975, 4 degrees) = 2.7764; the standard error of 1 to 5 is sqrt(2.5 / 5).
    half = 2.7764451 * 0.5**0.5
    assert interval([1, 2, 3, 4, 5]) == f" (95%: {3 - half:.3f} to {3 + half:.3f})"
    assert interval([0.5, 0.5]) == " (95%: 0.500 to 0.500)"
    assert interval([0.5]) == ""
    # A bound near zero shows its sign.
    half = 12.7062047  # t(0.975, 1 degree), times a standard error of 1
    assert interval([half - 1 + 4e-4, half + 1 + 4e-4]).startswith(" (95%: 0.0004 to ")
    assert interval([half - 1 - 4e-4, half + 1 - 4e-4]).startswith(" (95%: -0.0004 to ")
    assert interval([0, 0]) == " (95%: 0.000 to 0.000)"
