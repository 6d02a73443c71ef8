from mlx_gateloop.train.loss_scale import INITIAL, INTERVAL, next_scale


def test_an_overflow_halves_the_scale_and_many_good_steps_double_it():
    assert (INITIAL, INTERVAL) == (2.0**16, 2000)  # those of torch.amp.GradScaler
    assert next_scale(INITIAL, 7, finite=False) == (INITIAL / 2, 0)
    assert next_scale(INITIAL, 7, finite=True) == (INITIAL, 8)
    assert next_scale(INITIAL, INTERVAL - 1, finite=True) == (2 * INITIAL, 0)
    assert next_scale(1.0, 0, finite=False) == (1.0, 0)  # it is never worn down to 0
