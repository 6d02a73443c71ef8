"""Runs of a model that share forward passes: what each says is what it says alone."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.family import save_family_model
from helpers.models import save_tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_gateloop.app.generation.decoder import Request
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.prefix_cache import PrefixCache
from mlx_gateloop.app.generation.run import Limits, Run

from mlx_gateloop.generate import Sampling

QUOTED = "abcabcabcabcabcabc"  # so that lookup has something to propose
REQUESTS = [  # prompt, sampling, tokens, record, lookup
    ("x" * 300, Sampling(0), 30, True, False),
    (QUOTED, Sampling(0.01, seed=2), 90, True, True),
    (QUOTED, Sampling(1.0, 0.9, 40, 0.01, 1.3, seed=3), 25, False, False),
    ("y", Sampling(0, repetition_penalty=1.2), 17, True, True),
]
KINDS = {
    "tiny": {"chat": True, "hidden_size": 16, "intermediate_size": 32},
    "heads": {"num_heads": 2, "output_gate": True},
    "softmax": {"mixer": "softmax", "num_heads": 2},
}
PARAMS = ["tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in ("heads", "softmax", "gla"))]


class Runs:
    """Runs of one model, advanced in any order."""

    def __init__(self, loaded):
        self.loaded = loaded
        self.queue = SimpleNamespace(prefix_cache=PrefixCache(1, 1), limits=Limits())

    def start(self, index):
        run = Run("tiny")
        prompt, sampling, tokens, record, lookup = REQUESTS[index]
        request = Request(prompt, sampling, tokens, record, None, (), lookup)
        return run, request.steps(run, self.loaded, self.queue)


@pytest.fixture(scope="module", params=PARAMS)
def runs(request, tmp_path_factory):
    """Runs of a model, with those of each request alone."""
    folder, name = tmp_path_factory.mktemp("models"), request.param
    if name == "gla":
        save_family_model(folder / name, name)
    else:
        save_tiny_model(folder / name, seed=3, **KINDS[name])
    runs = Runs(Models([folder], trusted=folder).load(name))
    runs.name, runs.alone = name, []
    for index in range(len(REQUESTS)):
        run, steps = runs.start(index)
        for _ in steps:
            pass
        runs.alone.append(run)
    return runs


@settings(deadline=None, max_examples=15)
@given(order=st.lists(st.integers(0, len(REQUESTS) - 1), max_size=60))
def test_runs_join_and_leave_a_batch_at_any_token(runs, order):
    started, ended = {}, set()
    for index in [*order, *range(len(REQUESTS))] + 800 * [*range(len(REQUESTS))]:
        if index not in started:
            started[index] = runs.start(index)
        if index not in ended and next(started[index][1], "end") == "end":
            ended.add(index)
    assert len(ended) == len(REQUESTS)
    for alone, (run, _) in zip(runs.alone, map(started.get, range(len(REQUESTS))), strict=True):
        assert [p.id for p in run.pieces] == [p.id for p in alone.pieces]
        assert (run.reason, run.stats.guessed) == (alone.reason, alone.stats.guessed)
        for mine, its in zip(run.pieces, alone.pieces, strict=True):
            assert [c for _, c in mine.candidates] == pytest.approx(
                [c for _, c in its.candidates], rel=1e-4
            )
        if alone.trace is not None:
            assert run.trace.tokens == alone.trace.tokens == len(run.pieces)
            for layer in range(alone.trace.layers):
                rates = run.trace.rate(layer), alone.trace.rate(layer)
                np.testing.assert_allclose(*rates, rtol=1e-4, atol=1e-6)


def test_lookup_changes_no_token_and_batches_save_passes(runs, monkeypatch):
    passes, model = [], type(runs.loaded.model)
    call = model.__call__
    monkeypatch.setattr(
        model, "__call__", lambda *a, **o: passes.append(a[1].shape) or call(*a, **o)
    )

    def count(lookup, together):
        """Return the passes that four runs of one request take in turns."""
        passes.clear()
        prompt, sampling, tokens, record, _ = REQUESTS[1]
        request = Request(prompt, sampling, tokens, record, None, (), lookup)
        both = [Run("tiny") for _ in range(together)]
        going = [request.steps(run, runs.loaded, runs.queue) for run in both]
        while any([next(steps, "end") != "end" for steps in going]):  # noqa: C419 (all advance)
            pass
        for run in both:
            assert [p.id for p in run.pieces] == [p.id for p in runs.alone[1].pieces]
        return len(passes)

    single = count(lookup=False, together=1)
    guessed = runs.alone[1].stats.guessed
    assert count(lookup=True, together=1) == single - guessed
    assert (guessed > 20) == (runs.name in ("heads", "softmax"))  # whose text repeats
    grows = runs.name == "softmax"
    assert count(lookup=False, together=4) == (4 * single if grows else single + 3)
