"""Sums over groups of tokens, and windows of the last ones."""

import numpy as np
import pytest

from mlx_gateloop.watch.pyramid import Pyramid, Window, wrapped


def filled(values, cuts=(), sizes=(16, 8, 8, 16), wrap=None):
    levels = Pyramid(values.shape[1], sizes, wrap)
    for part in np.split(values, cuts):
        levels.append(part)
    return levels


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100, 1000, 5000])
def test_sums_are_exact_between_groups(tokens):
    chance = np.random.default_rng(tokens)
    values = chance.exponential(size=(tokens, 3)).astype(np.float32)
    levels = filled(values, chance.integers(1, 40, tokens).cumsum())
    rows, groups = levels.stored(0, tokens)
    assert groups.sum() == tokens
    assert (np.diff(groups) <= 0).all()  # older groups are larger
    edges = np.concatenate([[0], groups.cumsum()])
    assert rows == pytest.approx(np.add.reduceat(values.astype(np.float64), edges[:-1]), rel=1e-5)
    assert np.array_equal(levels.read(max(tokens - 8, 0), tokens), values[-8:])
    for start, stop in [(0, tokens), (tokens // 3, tokens // 2 + 1), (tokens - 1, tokens), (1, 1)]:
        even = levels.read(start, stop)
        assert len(even) == stop - start
        assert even == pytest.approx(levels.read(0, tokens)[start:stop], rel=1e-6)


def test_angles_are_wrapped_and_resets_stay():
    values = np.random.default_rng(0).uniform(-np.pi, np.pi, (2000, 2)).astype(np.float32)
    rows, groups = filled(values, wrap=wrapped).stored(0, 2000)
    exact = np.add.reduceat(values.astype(np.float64), np.concatenate([[0], groups.cumsum()[:-1]]))
    assert np.exp(1j * rows) == pytest.approx(np.exp(1j * exact), abs=1e-4)
    assert (np.abs(rows) <= np.float32(np.pi)).all()
    values[10] = np.inf  # |a| = 0
    assert np.isinf(filled(values).read(0, 2000)[10]).all()


def test_a_window_keeps_the_last_tokens():
    chance, window, values = np.random.default_rng(0), Window(5, (2,)), np.empty((0, 2))
    for size in chance.integers(1, 13, 40):
        new = chance.normal(size=(size, 2)).astype(np.float32)
        values = np.concatenate([values, new])
        window.append(new[-5:], int(size))
        for back in range(min(3, len(values))):
            stop = len(values) - back
            read = window.read(stop)
            assert np.array_equal(read, values[stop - len(read) : stop].astype(np.float32))
            assert len(read) == min(5, stop) or back
    assert window.tokens == len(values)
