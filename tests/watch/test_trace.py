"""Everything that a trace tells follows from the transitions in it."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_gateloop.ops import Transition
from mlx_gateloop.watch import Recorder, Trace
from mlx_gateloop.watch.measures import HIGH, LOW

BLOCK = 64
LAYERS, CHANNELS = 2, 8


def random_trace(tokens, seed=0):
    chance, trace = np.random.default_rng(seed), Trace(LAYERS, CHANNELS)
    columns = chance.normal(size=(4, LAYERS, tokens, CHANNELS)).astype(np.float32)
    columns[0] = np.abs(columns[0])
    for at in range(0, tokens, BLOCK):
        trace.append(columns[:, :, at : at + BLOCK])
    return trace, columns


def test_a_reset_forgets_everything_before_it():
    trace = Trace(1, 2)
    recorder = Recorder(trace)
    a = mx.array([[[0.9, 0.9], [0.9, 0.5], [0.0, 0.0], [0.8, 0.8]]])
    ones = mx.ones(a.shape)
    recorder.report(ones, ones, Transition.of(a))
    recorder.step()
    recorder.take()
    magnitude, full = trace.remembered(0, 3)
    assert magnitude == pytest.approx([0, 0, 0.8, 1.0])
    assert full == pytest.approx([0, 0, 1.6, 2.0])
    left = trace.left(0, 1)  # the mean of the first token hides a channel that keeps it
    assert left == pytest.approx(np.array([[0.9, 0.5], [1, 1]]))


def test_resets_are_tokens_at_which_a_quarter_of_the_remembering_channels_forget():
    columns = np.full((4, 2, 100, 8), 0.01, np.float32)
    columns[0, 1, :, 4:] = 3  # these never remember and do not count: twelve channels do
    columns[0, :, 40, :4] = 5  # eight of the twelve forget
    columns[0, 0, 60, :3] = 5  # three, all of one layer
    columns[0, 0, 70, :2] = 5  # two
    columns[0, :, 80, :4] = 0.69  # all remember just a half
    columns[0, :, 90, :4] = 0.7
    trace = Trace(2, 8)
    trace.append(columns)
    assert trace.resets().tolist() == [40, 60, 90]
    assert trace.resets(41).tolist() == [40]
    assert Trace(2, 8).resets().tolist() == []


def test_columns_keep_long_products():
    # Half-lives from a fraction of a token to thousands, over as many tokens.
    rates = np.geomspace(LOW * 2, HIGH / 2, 64, dtype=np.float32)
    columns = np.zeros((4, 1, 1024, 64), np.float32)
    columns[0] = rates
    columns[1] = np.linspace(-np.pi, np.pi, 64)
    trace = Trace(1, 64)
    trace.append(columns)
    written = trace.columns(0)
    assert written.shape == (1024, 2, 64)
    assert written.dtype == np.uint8
    read_back = LOW * (HIGH / LOW) ** (written[:, 0] / 255)
    assert np.exp(-read_back.sum(0)) == pytest.approx(np.exp(-1024 * rates), abs=0.015)
    phase = (written[0, 1] / 255 * 2 - 1) * np.pi
    assert phase == pytest.approx(columns[1, 0, 0], abs=np.pi / 255)


def test_slices_across_blocks():
    trace, columns = random_trace(3 * BLOCK + 5)
    for start, stop in [(0, None), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (7, 7), (190, 999)]:
        part = columns[:, 1, start:stop]
        assert np.array_equal(trace.phase(1, start, stop), part[1])
        assert trace.magnitude(1, start, stop) == pytest.approx(np.exp(-part[0]))
        assert len(trace.columns(1, start, stop)) == part.shape[1]
    means = np.exp(-columns[0]).mean(-1).T
    assert trace.averages() == pytest.approx(means, abs=1e-6)
    assert trace.averages(BLOCK + 1) == pytest.approx(means[BLOCK + 1 :], abs=1e-6)


def test_saved_file(tmp_path):
    trace, columns = random_trace(5)
    trace.save(tmp_path / "trace.npz", ["a", "é", "", "\n", "<b>"])
    with np.load(tmp_path / "trace.npz") as file:
        assert file["texts"].tolist() == ["a", "é", "", "\n", "<b>"]
        assert file["magnitude"] == pytest.approx(np.exp(-columns[0]))
        assert np.array_equal(file["phase"], columns[1])
        assert file["averages"].shape == (5, LAYERS)
