"""The measure of the proof: what counts as a difference, and what never passes."""

import numpy as np
from mlx_gateloop.convert.verify import Report, compare, random_tokens


def test_differences_are_relative_to_the_largest_value():
    source = np.array([[[4.0, 0.0], [1.0, -2.0]]])
    ours = source + np.array([[[0.0, 0.0], [-2.0, 4.0]]])  # the second position's argmax turns
    comparison = compare("length 2", ours.astype(np.float32), source)
    assert comparison.largest == 4 / 4
    assert comparison.mean == (0 + 0 + 2 + 4) / 4 / 4
    assert comparison.agreement == 0.5
    assert [Report([comparison], [], limit).passed for limit in (1.0, 0.99)] == [True, False]


def test_not_a_number_never_passes():
    source = np.ones((1, 2, 3))
    for ours in (np.full((1, 2, 3), np.nan), source):
        assert not Report([compare("length 2", ours, source * np.nan)], [], np.inf).passed


def test_tokens_cover_the_vocabulary_and_are_the_same_every_time():
    tokens = random_tokens(7, 100)
    assert tokens.shape == (2, 100)
    assert set(tokens.flat) == set(range(7))
    assert (tokens == random_tokens(7, 100)).all()
