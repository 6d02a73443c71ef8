"""Retention of tokens: the definition of their shares, in the state itself."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import GROWING, VARIANTS, tiny_model, tokens
from helpers.recurrent import recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.watch.attention_rows import shares_from, state_norms

LENGTH = 23
TEXT = np.array(tokens(LENGTH))[0]


def made(name):
    options = (VARIANTS | GROWING).get(name)
    return recurrent_model(name) if options is None else tiny_model(**options)


def states_of_single_tokens(model, text):
    """The norm of each layer's state at n if only token m writes, `[layers, m, n]`."""
    noted = []
    for layer in model.layers:
        layer.time_mixing.observe = lambda *given: noted.append(given)
    model(mx.array(text[None]))
    for layer in model.layers:
        del layer.time_mixing.observe
    norms = np.zeros((len(noted), len(text), len(text)))
    for layer, (q, k, v, a, _) in enumerate(noted):
        for m in range(len(text)):
            only = mx.array((np.arange(len(text)) == m).astype(np.float32))
            only = only.reshape(1, -1, *[1] * (k.ndim - 2))
            for n in range(m, len(text)):
                gates = (p if p is None else p[:, : n + 1] for p in (a.first, a.second))
                upto = type(a)(a.form, *gates)
                _, h = gl.gate_loop(q[:, : n + 1], (k * only)[:, : n + 1], v[:, : n + 1], upto)
                norms[layer, m, n] = np.sqrt((np.array(h).astype(np.float64) ** 2).sum())
    return norms


@pytest.mark.parametrize("name", ["paper", "heads", "real", "lucidrains", "no key", "retnet", "s5"])
def test_the_share_of_a_token_is_that_of_its_state_alone(name):
    model, text = made(name), TEXT[:9]
    norms = states_of_single_tokens(model, text)
    expected = (norms / np.sqrt((norms**2).sum(1, keepdims=True))).mean(0)
    for n, shares in enumerate(gl.watch.trace_of(model, text).retentions()):
        assert shares.dtype == np.float32
        assert np.abs(shares - expected[: n + 1, n]).max() <= 1e-5


RECURRENT = sorted((VARIANTS | GROWING).keys() - {"attention", "rotary"})


@pytest.mark.parametrize("name", [*RECURRENT, "mamba2", "rwkv7", "falcon_h1"])
def test_all_rows_in_one_pass_are_those_of_each_token(name):
    model = made(name)
    for start, window in [(0, 50), (9, 50), (0, 8), (9, 8), (22, 8), (0, 0)]:
        with gl.watch.recording(model, window=window) as recorder:
            mx.eval(model(mx.array(TEXT[None])))
        trace = recorder.trace
        rows = list(trace.retentions(start))
        assert [len(row) for row in rows] == list(range(1, LENGTH - start + 1))
        assert [*map(len, trace.retentions(start - LENGTH))] == [*map(len, rows)]
        for token, row in enumerate(rows, start):
            known = np.isfinite(row)
            assert ((row[known] >= 0) & (row[known] <= 1 + 1e-6)).all()
            assert (np.flatnonzero(known) + start >= LENGTH - window).all()
            if known.all() or token == LENGTH - 1:
                assert row == pytest.approx(trace.retention(token)[start:], abs=1e-6, nan_ok=True)
        assert np.isfinite(rows[-1]).sum() == min(window, LENGTH - start)


def test_products_that_become_nothing_are_nothing():
    rate = np.full((200, 1, 3), 1.5, np.float32)
    *_, last = shares_from(rate, {"key": np.ones((200, 1, 3), np.float32)}, 0)
    assert last[:100].max() == 0
    norms = state_norms(rate, {})
    assert last == pytest.approx(norms / np.sqrt((norms**2).sum()), abs=1e-6)
