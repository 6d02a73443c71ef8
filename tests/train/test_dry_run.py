import pytest
from helpers.training import tiny_run

from mlx_gateloop.train import estimate
from mlx_gateloop.train.dry_run import MIN_STEPS, duration


def test_an_estimate_is_of_the_run_itself(text_file, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    config = tiny_run(steps=None, epochs=4, optimizer__accumulate=2)
    result = estimate(config, str(text_file))
    assert 2 * result.steps % 4 == 0
    assert result.steps > 10
    assert result.epochs == pytest.approx(4)
    assert (result.tokens_per_step, result.timed) == (2 * 4 * 32, MIN_STEPS)
    assert 0 < result.seconds_per_step < 60
    weights = 4 * result.parameters  # bytes; with its gradient and two moments four times that
    assert 4 * weights < result.peak_bytes < 1 << 30
    assert f"{result.parameters:,} (" in str(result)


def test_durations():
    texts = {0.2: "1 s", 59.4: "59 s", 125: "2 min 5 s", 3600: "1 h 0 min"}
    texts[86400 * 1234 + 7300] = "1,234 d 2 h"
    assert {seconds: duration(seconds) for seconds in texts} == texts
