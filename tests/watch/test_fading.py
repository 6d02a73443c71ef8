"""Shares of tokens in the state: their definition, in the state itself."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import GROWING, VARIANTS, tiny_model, tokens
from helpers.recurrent import recurrent_model
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.model.layers import TimeMixing
from mlx_gateloop.watch.rows import held, shares_from

LENGTH = 23


def ids(length=LENGTH, seed=0):
    return np.array(tokens(length, seed=seed))[0]


def states_of_single_tokens(model, text, monkeypatch):
    """The norm of what the state of each layer holds of token m at n, `[layers, m, n]`.

    What a layer is given stays the same, but only one token writes.
    """
    noted, inputs = [], TimeMixing._inputs

    def note(self, x, cache):
        noted.append(inputs(self, x, cache))
        return noted[-1]

    monkeypatch.setattr(TimeMixing, "_inputs", note)
    model(mx.array(text[None]))
    monkeypatch.undo()
    norms = np.zeros((len(noted), len(text), len(text)))
    for layer, (q, k, v, a) in enumerate(noted):
        for m in range(len(text)):
            only = mx.array((np.arange(len(text)) == m).astype(np.float32))
            only = only.reshape(1, -1, *[1] * (k.ndim - 2))
            for n in range(m, len(text)):
                upto = type(a)(
                    a.form, *(p if p is None else p[:, : n + 1] for p in (a.first, a.second))
                )
                _, h = gl.gate_loop(q[:, : n + 1], (k * only)[:, : n + 1], v[:, : n + 1], upto)
                norms[layer, m, n] = np.sqrt((np.array(h).astype(np.float64) ** 2).sum())
    return norms


@pytest.mark.parametrize("name", ["paper", "heads", "real", "lucidrains", "no key", "retnet", "s5"])
def test_the_share_of_a_token_is_that_of_its_state_alone(name, monkeypatch):
    model, text = tiny_model(**VARIANTS[name]), ids(9)
    norms = states_of_single_tokens(model, text, monkeypatch)
    expected = (norms / np.sqrt((norms**2).sum(1, keepdims=True))).mean(0)
    shares = gl.watch.fading(model, text)
    assert shares.dtype == np.float32
    assert np.abs(shares - expected).max() <= 1e-5
    assert (shares[np.tri(9, k=-1, dtype=bool)] == 0).all()


@pytest.mark.parametrize("name", [*VARIANTS, *GROWING, "mamba2", "rwkv7", "falcon_h1"])
def test_any_recurrent_model(name):
    options = (VARIANTS | GROWING).get(name)
    model = recurrent_model(name) if options is None else tiny_model(**options)
    if name in ("attention", "rotary"):
        with pytest.raises(ValueError, match="no recurrence to watch"):
            gl.watch.fading(model, ids())
        return
    shares = gl.watch.fading(model, ids())
    assert shares.shape == (LENGTH, LENGTH)
    assert ((shares >= 0) & (shares <= 1 + 1e-6)).all()
    assert shares[0, 0] == pytest.approx(1)


@pytest.mark.parametrize("name", ["paper", "heads", "s5", "mamba2", "rwkv7"])
@pytest.mark.parametrize(("start", "window"), [(0, 50), (9, 50), (0, 8), (9, 8), (22, 8)])
def test_all_rows_in_one_pass_are_those_of_each_token(name, start, window):
    options = VARIANTS.get(name)
    model = recurrent_model(name) if options is None else tiny_model(**options)
    with gl.watch.recording(model, window=window) as recorder:
        mx.eval(model(mx.array(ids()[None])))
    trace = recorder.trace
    rows = list(trace.fadings(start))
    assert [len(row) for row in rows] == list(range(1, LENGTH - start + 1))
    for token, row in enumerate(rows, start):
        expected = trace.fading(token)[start:]
        known = np.isfinite(row)
        assert (np.flatnonzero(known) + start >= LENGTH - window).all()
        if known.all() or token == LENGTH - 1:
            assert row == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert np.isfinite(rows[-1]).sum() == min(window, LENGTH - start)


def test_products_that_become_nothing_are_nothing():
    rate = np.full((200, 1, 3), 1.5, np.float32)
    *_, last = shares_from(rate, {"key": np.ones((200, 1, 3), np.float32)}, 0)
    assert last[:100].max() == 0
    assert last == pytest.approx(held(rate, {}) / np.sqrt((held(rate, {}) ** 2).sum()), abs=1e-6)


def test_a_recording_says_the_same_of_generated_tokens():
    model, text = tiny_model(), ids()
    with gl.watch.recording(model) as recorder:
        cache = model.make_cache()
        for part in (text[:7], text[7:8], text[8:]):
            model(mx.array(part[None]), cache)
    expected = gl.watch.fading(model, text)
    for token in (0, 7, LENGTH - 1):
        row = recorder.trace.fading(token)
        assert row == pytest.approx(expected[: token + 1, token], abs=1e-5)


def test_what_the_window_does_not_reach_is_unknown():
    model = tiny_model()
    with gl.watch.recording(model, window=5) as recorder:
        model(mx.array(ids()[None]))
    row = recorder.trace.fading(LENGTH - 1)
    assert np.isnan(row[:-5]).all()
    assert (row[-5:] > 0).all()
    with gl.watch.recording(model, window=0) as recorder:
        model(mx.array(ids()[None]))
    assert np.isnan(recorder.trace.fading(LENGTH - 1)).all()


@given(seed=st.integers(0, 99), length=st.integers(1, 12), reset=st.integers(0, 11))
@settings(max_examples=30, deadline=None)
def test_laws(seed, length, reset):
    chance = np.random.default_rng(seed)
    rate = chance.exponential(size=(length, 3, 2))
    reads = {
        "key": chance.normal(size=(length, 3, 2)),
        "value": chance.exponential(size=(length, 3)),
    }
    norms = held(rate, reads)
    # A token is held by itself: others do not change it, and none that comes only adds to it.
    other = {name: values.copy() for name, values in reads.items()}
    other["key"][length // 2] *= 7
    assert np.delete(held(rate, other) - norms, length // 2) == pytest.approx(0)
    assert held(rate, other)[length // 2] == pytest.approx(7 * norms[length // 2])
    if length > 1:
        assert (norms[:-1] <= held(rate[:-1], {n: v[:-1] for n, v in reads.items()}) + 1e-12).all()
    # A reset leaves nothing of what was before it, and a token without value is not there.
    if reset < length:
        rate[reset], reads["value"][reset] = np.inf, 0
        assert (held(rate, reads)[: reset + 1] == 0).all()


def test_wrong_input_is_one_line():
    for wrong in ([], [[1]], [99], [0.5]):
        with pytest.raises(ValueError, match=r"^tokens: expected"):
            gl.watch.fading(tiny_model(), wrong)
