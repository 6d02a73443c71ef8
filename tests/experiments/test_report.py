import pytest
from helpers.records import run_record

from mlx_gateloop.experiments import report


def test_the_summary_of_a_model():
    accuracies, resetting = (0.9, 0.8, 0.7), ([1, 0], [0, 0], [0, 2])
    results = [
        run_record("fixed", seed, accuracy=accuracy, magnitudes={"resetting": channels})
        for seed, (accuracy, channels) in enumerate(zip(accuracies, resetting, strict=True))
    ]
    summary = report._summary(results, 2048)
    assert summary["state_size"] == 2048
    assert summary["accuracy"] == pytest.approx(0.8)
    assert summary["standard_deviation"] == pytest.approx(0.1)
    assert summary["runs_with_resetting_channels"] == 2
    assert report._summary(results[:1], None)["standard_deviation"] is None


def test_without_runs_there_is_no_report(tmp_path):
    report.write_report(tmp_path, None, None, "")
    assert list(tmp_path.iterdir()) == []
