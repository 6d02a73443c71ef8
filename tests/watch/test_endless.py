"""A trace without an end: constant memory, and products that stay exact."""

import numpy as np
import pytest

from mlx_gateloop.watch.angles import wrapped
from mlx_gateloop.watch.endless import EndlessTrace, total_bytes
from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.levels import Levels, Window


def filled(values, pieces, sizes=(16, 8, 8, 16), wrap=None):
    levels, at = Levels(values.shape[1], sizes, wrap), 0
    while at < len(values):
        size = next(pieces)
        levels.append(values[at : at + size])
        at += size
    return levels


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100, 1000, 5000])
def test_sums_are_exact_between_groups(tokens):
    chance = np.random.default_rng(tokens)
    values = chance.exponential(size=(tokens, 3)).astype(np.float32)
    levels = filled(values, iter(lambda: int(chance.integers(1, 40)), None))
    rows, groups = levels.stored(0, tokens)
    assert groups.sum() == tokens
    assert (np.diff(groups) <= 0).all()  # older groups are larger
    edges = np.concatenate([[0], groups.cumsum()])
    exact = np.add.reduceat(values.astype(np.float64), edges[:-1])
    assert rows == pytest.approx(exact, rel=1e-5)
    assert np.array_equal(levels.read(max(tokens - 8, 0), tokens), values[-8:])
    for start, stop in [(0, tokens), (tokens // 3, tokens // 2 + 1), (tokens - 1, tokens)]:
        even = levels.read(start, stop)
        assert len(even) == stop - start
        assert even == pytest.approx(levels.read(0, tokens)[start:stop], rel=1e-6)


def test_the_order_of_appending_changes_nothing():
    values = np.random.default_rng(0).exponential(size=(3000, 2)).astype(np.float32)
    one, many = filled(values, iter([3000])), filled(values, iter(lambda: 1, None))
    assert np.array_equal(one.read(0, 3000), many.read(0, 3000))


def test_angles_are_wrapped_and_resets_stay():
    values = np.random.default_rng(0).uniform(-np.pi, np.pi, (2000, 2)).astype(np.float32)
    rows, groups = filled(values, iter([2000]), wrap=wrapped).stored(0, 2000)
    edges = np.concatenate([[0], groups.cumsum()[:-1]])
    exact = np.add.reduceat(values.astype(np.float64), edges)
    assert np.exp(1j * rows) == pytest.approx(np.exp(1j * exact), abs=1e-4)
    assert (np.abs(rows) <= np.float32(np.pi)).all()
    values[10] = np.inf  # |a| = 0
    assert np.isinf(filled(values, iter([2000])).read(0, 2000)[10]).all()


def test_memory_never_grows_however_long_the_text():
    levels, zeros = Levels(1, (16, 8, 8, 16)), np.zeros((10_000, 1), np.float32)
    assert levels.nbytes == 0
    levels.append(zeros)
    before = levels.nbytes
    assert before == 48 * 12
    for _ in range(20):
        levels.append(zeros)
    assert levels.nbytes == before
    assert levels.stored(0, 200_000)[1].sum() == 200_000


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


def trace_and_rates(tokens, most_bytes, window=32, channels=8):
    chance = np.random.default_rng(1)
    rates = chance.exponential(0.001, (tokens, channels)).astype(np.float32)
    trace = EndlessTrace([Layer("one", "gate loop")], most_bytes, window)
    read = {"query": np.ones((1000, channels, 1), np.float32)}
    read["key"] = read["query"]
    for at in range(0, tokens, 1000):
        part = rates[at : at + 1000]
        reads = {name: values[: len(part)] for name, values in read.items()}
        trace.append([Columns(part, part, reads)])
    return trace, rates


def test_100_000_tokens_of_12_times_624_channels_fit_in_256_megabytes_in_groups_of_64():
    share = 96  # of the memory: one layer of 78 channels
    trace, rates = trace_and_rates(100_000, (256 << 20) // share, window=256, channels=78)
    assert trace.nbytes <= (256 << 20) // share
    assert trace._layers[0].rate.stored(0, 100_000)[1].max() == 64
    mean, full = trace.remembered(0, 99_999)
    edges = np.arange(63, 64_000, 64 * 25)  # the last token of a group: nothing of it is shared out
    since = rates[::-1].astype(np.float64).cumsum(0)[::-1]
    exact = np.exp(-since[edges + 1]).mean(1)
    assert mean[edges] == pytest.approx(exact, rel=1e-4)
    assert np.isnan(full[:-256]).all()
    assert not np.isnan(full[-256:]).any()


@pytest.mark.parametrize("at", [1, 700, 1990, 2000, 2900, 3000])
def test_branches_share_their_beginning_and_then_go_their_own_ways(at):
    trace, rates = trace_and_rates(3000, 100_000)
    before, branch = trace.magnitude(0, 0, at), trace.branch(at)
    assert total_bytes([trace, None, branch]) == trace.nbytes == branch.nbytes
    assert np.array_equal(branch.magnitude(0), before)
    more = rates[:50] + 1
    reads = {name: np.ones((50, 8, 1), np.float32) for name in ("query", "key")}
    branch.append([Columns(more, more, reads)])
    other = trace.branch(at)
    for one in (branch, other):
        if one is other:
            one.append([Columns(more, more, reads)])
        assert one.tokens == at + 50
        assert one.magnitude(0, at) == pytest.approx(np.exp(-more), rel=1e-6)
        assert one.magnitude(0, max(at - 8, 0), at) == pytest.approx(before[-8:], rel=1e-6)
        since = one.left(0, at + 49)[0]
        exact = trace.left(0, at - 1)[0] * np.exp(-more.sum(0, dtype=float))
        assert since == pytest.approx(exact, rel=1e-4)
        assert np.isfinite(one.remembered(0, at + 49)[1][-32:]).all()
    assert total_bytes([trace, branch, other]) > trace.nbytes
    assert trace.tokens == 3000
    if at < 3000:  # or the window, which both share, has gone on
        assert np.isfinite(trace.remembered(0, 2999)[1][-16:]).all()


def test_the_best_channel_is_that_of_what_is_left():
    trace, _ = trace_and_rates(5000, 4 << 20)
    left, (shares, channels) = trace.left(0, 4999), trace.best(0, 4999)
    assert shares == pytest.approx(left.max(1), rel=1e-5)
    assert np.array_equal(channels, left.argmax(1))


def test_measures_of_a_long_trace_are_those_of_its_tokens():
    trace, rates = trace_and_rates(5000, 4 << 20)
    assert trace.averages()[:, 0] == pytest.approx(np.exp(-rates).mean(1), abs=1e-6)
    assert trace.left(0, 4999)[0] == pytest.approx(np.exp(-rates[1:].sum(0, dtype=float)))
    assert trace.phase(0) == pytest.approx(rates)
    assert trace.resets().tolist() == []
    trace.append(
        [
            Columns(
                np.full((1, 8), 9, np.float32),
                None,
                {"query": np.ones((1, 8, 1)), "key": np.ones((1, 8, 1))},
            )
        ]
    )
    assert trace.resets().tolist() == [5000]


def test_layers_differ_and_are_saved(tmp_path):
    layers = [Layer("a", "rwkv"), Layer("b", "selective scan", scale=np.ones((2, 3), np.float32))]
    trace = EndlessTrace(layers, 1 << 20, 0)
    one, two = np.full((4, 5), 0.5, np.float32), np.full((4, 2), 0.25, np.float32)
    trace.append([Columns(one, None, {}), Columns(two, None, {})])
    assert trace.magnitude(1).shape == (4, 6)
    trace.save(tmp_path / "trace.npz", "four")
    with np.load(tmp_path / "trace.npz") as file:
        assert file["names"].tolist() == ["a", "b"]
        assert np.array_equal(file["magnitude.0"], trace.magnitude(0))
        assert np.array_equal(file["phase.1"], np.zeros((4, 6)))
        assert file["averages"].shape == (4, 2)


def test_a_trace_without_its_layers_is_empty():
    trace = EndlessTrace([Layer("a", "rwkv"), Layer("b", "rwkv")], 1 << 20, 4)
    trace.append([Columns(np.full((4, 2), n, np.float32), None, {}) for n in (1, 2)])
    trace.without("a")
    assert (trace.tokens, trace.names) == (4, ("b",))
    assert np.array_equal(trace.magnitude(0), np.full((4, 2), np.exp(np.float32(-2))))
    with pytest.raises(IndexError, match="layer 1: expected 0 to 0"):
        trace.magnitude(1)
    trace.without("b")
    assert (trace.tokens, trace.grouped, trace.nbytes) == (0, 0, 0)
    assert trace.averages().shape == (0, 0)
    assert "<iframe" in trace._repr_html_()
    with pytest.raises(IndexError, match="layer 0: its layers are not watched"):
        trace.magnitude(0)
