"""A trace: constant memory, products that stay exact, and measures that follow from them."""

from functools import partial
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import VARIANTS, tiny_model
from helpers.recurrent import recurrent_model
from helpers.traces import columns_of, left, trace_with

import mlx_gateloop as gl
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.sharing import HIGH, LOW
from mlx_gateloop.watch.storage import total_bytes


def trace_and_rates(tokens, max_bytes, window=32, channels=8):
    rates = np.random.default_rng(1).exponential(0.001, (1, tokens, channels)).astype(np.float32)
    columns = np.stack([rates, rates, np.ones_like(rates), np.ones_like(rates)])
    return trace_with(columns, window, max_bytes, 1000), rates[0]


def test_a_reset_forgets_everything_before_it():
    a = np.array([[0.9, 0.9], [0.9, 0.5], [1e-30, 1e-30], [0.8, 0.8]])
    trace = trace_with(np.stack([-np.log(a), 0 * a, a**0, a**0])[:, None])
    magnitude, full = trace.remembered(0, 3)
    assert magnitude == pytest.approx([0, 0, 0.8, 1.0])
    assert full == pytest.approx([0, 0, 1.6, 2.0])
    shares, channels = trace.best(0, 1)  # a mean hides a channel that keeps the first token
    assert shares == pytest.approx([0.9, 1])
    assert channels[0] == 0


def test_resets_are_tokens_at_which_a_quarter_of_the_remembering_channels_forget():
    columns = np.full((4, 2, 100, 8), 0.01)
    columns[0, 1, :, 4:] = 3  # these never remember and do not count: twelve channels do
    columns[0, :, 20] = np.inf  # a document begins
    columns[0, :, 40, :4] = 5  # eight of the twelve forget
    columns[0, 0, 60, :3] = 5  # three, all of one layer
    columns[0, 0, 70, :2] = 5  # two
    columns[0, :, 80, :4] = 0.69  # all remember just a half
    columns[0, :, 90, :4] = 0.7
    trace = trace_with(columns)
    assert trace.resets().tolist() == [20, 40, 60, 90]
    assert trace.resets(41).tolist() == [20, 40]
    assert trace.resets(10**6).tolist() == trace.resets(-5).tolist() == [20, 40, 60, 90]
    assert Trace([], 1000, 0).resets().tolist() == []


def test_columns_keep_long_products():
    # Half-lives from a fraction of a token to thousands, over as many tokens.
    rates = np.geomspace(LOW * 2, HIGH / 2, 64, dtype=np.float32)
    columns = np.zeros((4, 1, 1024, 64), np.float32)
    columns[0] = rates
    columns[1] = np.linspace(-np.pi, np.pi, 64)
    written = trace_with(columns).columns(0)
    assert written.shape == (1024, 2, 64)
    assert written.dtype == np.uint8
    read_back = LOW * (HIGH / LOW) ** (written[:, 0] / 255)
    assert np.exp(-read_back.sum(0)) == pytest.approx(np.exp(-1024 * rates), abs=0.015)
    phase = (written[0, 1] / 255 * 2 - 1) * np.pi
    assert phase == pytest.approx(columns[1, 0, 0], abs=np.pi / 255)


def test_100_000_tokens_of_12_times_624_channels_fit_in_256_megabytes_in_groups_of_64():
    share = 96  # the memory is divided by this: one layer of 78 channels
    trace, rates = trace_and_rates(100_000, (256 << 20) // share, window=256, channels=78)
    assert trace.nbytes <= (256 << 20) // share
    assert trace._layers[0].rate.stored(0, 100_000)[1].max() == 64
    mean, full = trace.remembered(0, 99_999)
    edges = np.arange(63, 64_000, 64 * 25)  # the last token of a group: nothing of it is shared out
    since = rates[::-1].astype(np.float64).cumsum(0)[::-1]
    assert mean[edges] == pytest.approx(np.exp(-since[edges + 1]).mean(1), rel=1e-4)
    assert np.isnan(full[:-256]).all()
    assert not np.isnan(full[-256:]).any()


@pytest.mark.parametrize("at", [1, 700, 1990, 2000, 2900, 3000])
def test_branches_share_their_beginning_and_then_go_their_own_ways(at):
    trace, rates = trace_and_rates(3000, 100_000)
    before, branch = trace.magnitude(0, 0, at), trace.branch(at)
    assert total_bytes([trace, None, branch]) == trace.nbytes == branch.nbytes
    assert np.array_equal(branch.magnitude(0), before)
    more = rates[:50] + 1
    new = [columns_of(more, more, np.ones_like(more), np.ones_like(more))]
    branch.append(new)
    other = trace.branch(at)
    for one in (branch, other):
        if one is other:
            one.append(new)
        assert one.tokens == at + 50
        assert one.magnitude(0, at) == pytest.approx(np.exp(-more), rel=1e-6)
        assert one.magnitude(0, max(at - 8, 0), at) == pytest.approx(before[-8:], rel=1e-6)
        exact = left(trace, 0, at - 1)[0] * np.exp(-more.sum(0, dtype=float))
        assert left(one, 0, at + 49)[0] == pytest.approx(exact, rel=1e-4)
        assert np.isfinite(one.remembered(0, at + 49)[1][-32:]).all()
    assert total_bytes([trace, branch, other]) > trace.nbytes
    assert trace.tokens == 3000
    if at < 3000:  # or the window, which both share, has gone on
        assert np.isfinite(trace.remembered(0, 2999)[1][-16:]).all()


def test_measures_of_a_long_trace_are_those_of_its_tokens():
    trace, rates = trace_and_rates(5000, 4 << 20)
    for part in (slice(None), slice(7, 7), slice(9, 71), slice(4990, 9999)):
        start, stop = part.start or 0, part.stop
        assert trace.magnitude(0, start, stop) == pytest.approx(np.exp(-rates[part]), rel=1e-6)
        assert trace.phase(0, start, stop) == pytest.approx(rates[part])
        assert len(trace.columns(0, start, stop)) == len(rates[part])
        means = np.exp(-rates[part]).mean(1)
        assert trace.averages(start, stop)[:, 0] == pytest.approx(means, abs=1e-6)
    kept, (shares, channels) = left(trace, 0, 4999), trace.best(0, 4999)
    assert kept[0] == pytest.approx(np.exp(-rates[1:].sum(0, dtype=float)))
    assert shares == pytest.approx(kept.max(1), rel=1e-5)
    assert np.array_equal(channels, kept.argmax(1))
    assert trace.resets().tolist() == []
    trace.append([columns_of(*np.full((4, 1, 8), 9, np.float32))])
    assert trace.resets().tolist() == [5000]


def test_traces_are_saved(tmp_path):
    columns = np.random.default_rng(0).random((4, 2, 5, 8), np.float32)
    texts = ["a", "é", "", "\n", "<b>"]
    trace_with(columns).save(tmp_path / "same.npz", texts)
    with np.load(tmp_path / "same.npz") as file:
        assert file["texts"].tolist() == texts
        assert file["magnitude"] == pytest.approx(np.exp(-columns[0]))
        assert np.array_equal(file["phase"], columns[1])
        assert file["averages"].shape == (5, 2)
    layers = [Layer("a", "rwkv"), Layer("b", "selective scan", scale=np.ones((2, 3), np.float32))]
    trace = Trace(layers, 1 << 20, 0)
    trace.append([Columns(np.full((4, n), 0.5, np.float32), None, {}) for n in (5, 2)])
    trace.save(tmp_path / "trace.npz", "four")
    with np.load(tmp_path / "trace.npz") as file:
        assert file["names"].tolist() == ["a", "b"]
        assert np.array_equal(file["magnitude.0"], trace.magnitude(0))
        assert np.array_equal(file["phase.1"], np.zeros((4, 6)))
        assert file["averages"].shape == (4, 2)


def test_a_trace_without_its_layers_is_empty():
    trace = Trace([Layer("a", "rwkv"), Layer("b", "rwkv")], 1 << 20, 4)
    trace.append([Columns(np.full((4, 2), n, np.float32), None, {}) for n in (1, 2)])
    trace.without("a")
    assert (trace.tokens, trace.names) == (4, ("b",))
    assert np.array_equal(trace.magnitude(0), np.full((4, 2), np.exp(np.float32(-2))))
    with pytest.raises(IndexError, match="layer 1: expected 0 to 0"):
        trace.magnitude(1)
    measures = trace.retention, partial(trace.best, 0), partial(trace.remembered, 0)
    for measure, token in product(measures, (-1, 4)):
        with pytest.raises(IndexError, match=f"token {token}: expected 0 to 3"):
            measure(token)
    trace.without("b")
    assert (trace.tokens, trace.grouped, trace.nbytes) == (0, 0, 0)
    assert trace.averages().shape == (0, 0)
    assert "<iframe" in trace._repr_html_()
    with pytest.raises(IndexError, match="layer 0: no layer is watched"):
        trace.magnitude(0)


@pytest.mark.parametrize("made", [
    *(partial(recurrent_model, name) for name in ("gla", "hgrn", "hgrn2")),
    *(partial(tiny_model, **VARIANTS[name]) for name in VARIANTS),
])  # fmt: skip
def test_what_is_left_of_the_first_states(made):
    """A layer adds what is left of its first state to what it makes without one."""
    model = made(num_hidden_layers=1)
    given, empty = model.make_cache(), model.make_cache()
    model(mx.array([[1, 2, 3]]), given)
    first = np.array(given[0][0])
    if len(given[0].cache) > 1:
        empty[0][1] = given[0][1]  # what the convolution reads
    with gl.watch.recording(model) as recorder:
        model(mx.array([[5, 6, 7, 8]]), given)
    model(mx.array([[5, 6, 7, 8]]), empty)
    expected = np.linalg.norm(given[0][0] - empty[0][0]) / np.linalg.norm(first)
    assert recorder.trace.left([first]) == pytest.approx(expected, rel=1e-3)
