"""Runs of a model that share forward passes: what each says is what it says alone."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.cases import first
from helpers.family import save_family_model
from helpers.models import save_tiny_model
from helpers.steps import result
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_gateloop.app.generation.decoder import Request
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.prefix_cache import PrefixCache
from mlx_gateloop.app.generation.run import Limits, Run

from mlx_gateloop.generate import Sampling

QUOTED = "abcabcabcabcabcabc"  # so that lookup has something to propose
REQUESTS = [
    Request("x" * 300, Sampling(0), 30, True, None),
    Request(QUOTED, Sampling(0.01, seed=2), 90, True, None, lookup=True),
    Request(QUOTED, Sampling(1.0, 0.9, 40, 0.01, 1.3, seed=3), 25, False, None),
    Request("y", Sampling(0, repetition_penalty=1.2), 17, True, None, lookup=True),
]
ALL = range(len(REQUESTS))
KINDS = {
    "tiny": {"chat": True, "hidden_size": 16, "intermediate_size": 32},
    "heads": {"num_heads": 2, "output_gate": True},
    "softmax": {"mixer": "softmax", "num_heads": 2},
}


class Runs:
    """Runs of one model, advanced in any order, and those of each request alone."""

    def __init__(self, folder, name):
        if name == "gla":
            save_family_model(folder / name, name)
        else:
            save_tiny_model(folder / name, seed=3, **KINDS[name])
        self.name, self.loaded = name, Models([folder], trusted=folder).load(name)
        self.alone = []
        for run, steps in map(self.start, REQUESTS):
            result(steps)
            self.alone.append(run)

    def start(self, request):
        run = Run("tiny")
        return run, request.steps(run, self.loaded, PrefixCache(1, 1), Limits())


@pytest.fixture(scope="module", params=first(1, ["tiny", "heads", "softmax", "gla"]))
def runs(request, tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("models"), request.param)


@settings(max_examples=15)
@given(order=st.lists(st.sampled_from(ALL), max_size=60))
def test_runs_join_and_leave_a_batch_at_any_token(runs, order):
    started, ended = {}, set()
    for index in [*order, *ALL] + 800 * [*ALL]:
        if index not in started:
            started[index] = runs.start(REQUESTS[index])
        if index not in ended and next(started[index][1], "end") == "end":
            ended.add(index)
    assert ended == {*ALL}
    for index, alone in enumerate(runs.alone):
        run, _ = started[index]
        assert [p.id for p in run.pieces] == [p.id for p in alone.pieces]
        assert (run.reason, run.stats.guessed) == (alone.reason, alone.stats.guessed)
        for mine, its in zip(run.pieces, alone.pieces, strict=True):
            chances = [chance for _, chance in its.candidates]
            assert [c for _, c in mine.candidates] == pytest.approx(chances, rel=1e-4)
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
        """Return the passes that runs of one request take in turns."""
        passes.clear()
        started = [runs.start(replace(REQUESTS[1], lookup=lookup)) for _ in range(together)]
        while any([next(steps, "end") != "end" for _, steps in started]):  # noqa: C419 (all advance)
            pass
        for run, _ in started:
            assert [p.id for p in run.pieces] == [p.id for p in runs.alone[1].pieces]
        return len(passes)

    single = count(lookup=False, together=1)
    guessed = runs.alone[1].stats.guessed
    assert count(lookup=True, together=1) == single - guessed
    assert (guessed > 20) == (runs.name in ("heads", "softmax"))  # whose text repeats
    grows = runs.name == "softmax"
    assert count(lookup=False, together=4) == (4 * single if grows else single + 3)
