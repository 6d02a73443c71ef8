import pytest

from mlx_gateloop.train.loss_scale import INITIAL, INTERVAL, next_scale


def test_an_overflow_halves_the_scale_and_many_good_steps_double_it():
    assert next_scale(INITIAL, 7, finite=False) == (INITIAL / 2, 0)
    assert next_scale(INITIAL, 7, finite=True) == (INITIAL, 8)
    assert next_scale(INITIAL, INTERVAL - 1, finite=True) == (2 * INITIAL, 0)


def test_the_scale_stays_at_least_one():
    """Gradients that are not finite at any scale must not wear it down to 0."""
    assert next_scale(1.0, 0, finite=False) == (1.0, 0)


def test_the_constants_are_those_of_torch():
    torch = pytest.importorskip("torch")
    scaler = torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == INITIAL
    assert scaler.get_growth_interval() == INTERVAL
    assert next_scale(1.0, INTERVAL - 1, finite=True)[0] == scaler.get_growth_factor()
    assert next_scale(2.0, 0, finite=False)[0] == 2 * scaler.get_backoff_factor()
