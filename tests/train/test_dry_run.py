import pytest

from mlx_gateloop.train import estimate
from mlx_gateloop.train.dry_run import FEWEST, duration


def test_an_estimate_is_of_the_run_itself(text_file, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    monkeypatch.chdir(tmp_path)
    config = tiny(steps=None, epochs=4, optimizer__accumulate=2)
    before = sorted(tmp_path.rglob("*"))
    result = estimate(config, str(text_file))
    assert sorted(tmp_path.rglob("*")) == before
    assert 2 * result.steps % 4 == 0
    assert result.steps > 10
    assert result.epochs == pytest.approx(4)
    assert result.tokens_per_step == 2 * 4 * 32
    assert result.timed == FEWEST
    assert 0 < result.seconds_per_step < 60
    weights = 4 * result.parameters  # bytes; with its gradient and two moments four times that
    assert 4 * weights < result.peak_bytes < 1 << 30
    assert f"{result.parameters:,} (" in str(result)
    assert result.data.endswith("tokens of training text")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (59.4, "59 s"),
        (125, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (86400 * 1234 + 7300, "1,234 d 2 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
