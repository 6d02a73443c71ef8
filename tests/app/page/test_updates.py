"""The updates of a run reach a page once, by an answer's feed or when it asks."""

import asyncio
import base64
import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mlx_gateloop.app.generation.run import Token
from mlx_gateloop.app.generation.words import Word, Words
from mlx_gateloop.app.generation.worker_pool import WorkerPool
from mlx_gateloop.app.page import state_view
from mlx_gateloop.app.page import updates as updates_module
from mlx_gateloop.app.page.updates import MAX_COLUMNS, Feed, common_prefix, served, view_state

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch.trace import Trace

from .conftest import LONG, make_trace


@pytest.fixture
def ask(engine, updates, asking):
    return partial(asking(state_view.state_view(engine, updates, "view")), "updates_since")


def values(text, *shape):
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)


def test_a_page_gets_a_long_run_in_parts(ask, run):
    columns, averages, pieces, parts, answer = [], [], [], [], {"tokens": 1}
    while len(columns) < answer["tokens"]:  # as the page asks
        answer = ask(run.id, 1, len(columns), len(pieces))
        new = values(answer["columns"], 2, 3)
        assert (answer["start"], answer["known"]) == (len(columns), len(pieces))
        assert (answer["resets"] is not None) == (len(columns) + len(new) == LONG)
        columns += [*new]
        averages += [*values(answer["averages"], 2)]
        pieces += answer["pieces"]
        parts.append(len(new))
    assert parts == [MAX_COLUMNS] * 2 + [500]
    assert answer["done"]
    assert (np.array(columns) == run.trace.columns(1)).all()
    assert np.array(averages) / 255 == pytest.approx(run.trace.averages(), abs=0.003)
    assert [piece["text"] for piece in pieces] == [piece.text for piece in run.pieces]
    other = ask(run.id, 0, MAX_COLUMNS, LONG)  # another layer, of which it has a part
    assert (values(other["columns"], 2, 3) == run.trace.columns(0)[MAX_COLUMNS:][:1024]).all()


def test_resets_are_those_of_the_trace_whichever_layer_is_shown(ask, run):
    rates = np.full((2, LONG, 4), 0.01, np.float32)
    rates[0, [7, 300, LONG - 1], :2] = 5  # a quarter of all channels, in one layer
    rates[1, 9, :1] = 5
    run.trace = make_trace(rates)
    for layer in (0, 1):
        bits = np.unpackbits(values(ask(run.id, layer, LONG, LONG)["resets"]), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [7, 300, LONG - 1]


def test_wide_layers_and_long_runs_are_sent_in_parts_and_groups(ask, run, monkeypatch):
    monkeypatch.setattr(updates_module, "MAX_BYTES", 6 * 100)
    answer = ask(run.id, 0, 0, 0)
    assert len(values(answer["columns"], 2, 3)) == 100
    assert (len(answer["pieces"]), answer["grouped"]) == (MAX_COLUMNS, 0)
    run.trace = make_trace(np.ones((2, LONG, 3), np.float32), memory=60_000)
    assert 0 < ask(run.id, 0, 0, 0)["grouped"] == run.trace.grouped < LONG


def test_the_last_text_may_grow_after_it_was_sent(ask, run):
    assert ask(run.id, 0, LONG, LONG)["last"] == str(LONG - 1)
    run.done = False
    assert ask(run.id, 0, LONG, LONG)["last"] is None
    run.pieces[-1] = Token("whole", 0, "answer")
    run.finish()
    assert ask(run.id, 0, LONG, LONG)["last"] == "whole"


async def test_a_feed_brings_every_token_and_word_once(updates, chat):
    first = chat.say("One two.")
    run = chat.say("Three four", max_tokens=12)
    whole, pieces, shared, found = run.trace, run.pieces, len(first.pieces), Words().update(run)
    known = sum(word.stop < shared - 1 for word in found)
    texts, words = [None] * (shared - 1), [None] * known  # that the page has
    feed = Feed(updates, run, first, True)
    for tokens in range(shared, len(pieces) + 1):  # as the engine goes on
        run.pieces, run.trace = pieces[:tokens], whole.branch(tokens)
        run.done = tokens == len(pieces)
        value = await feed()
        new = json.loads(value["update"])
        assert new["start"] == new["known"] <= len(texts)
        texts[new["known"] :] = [piece["text"] for piece in new["pieces"]]
        assert len(values(new["columns"], 2, 16)) == len(new["pieces"])
        if new["words"]:
            assert new["words"]["start"] <= len(words)
            words[new["words"]["start"] :] = [word["text"] for word in new["words"]["words"]]
    assert value["common"] == shared
    assert len(texts) == new["tokens"] == len(pieces)
    assert texts[shared:] == [piece.text for piece in pieces[shared:]]
    assert words[known:] == [word.text for word in found[known:]]
    assert new["done"]
    codes = updates_module.strengths(whole, len(pieces) - 1, found)
    assert values(new["words"]["strengths"]).tolist() == codes.tolist()


def test_a_feed_brings_the_layer_that_the_page_has_asked_for(updates, ask, run):
    feed = Feed(updates, run, None, False)
    assert json.loads(asyncio.run(feed())["update"])["layer"] == 0
    ask(run.id, 1, 0, 0)
    latest = json.loads(asyncio.run(feed())["update"])
    assert (latest["layer"], latest["start"], latest["words"]) == (1, LONG, None)
    feed._updates.layers[run] = run.trace.layers  # the last one was excluded since
    assert json.loads(asyncio.run(feed())["update"])["layer"] == 0


def test_tokens_that_are_too_long_ago_are_unknown():
    trace = SimpleNamespace(retention=[[], [], np.array([np.nan, 0.25, 1.0])].__getitem__)
    words = [Word(0, 2 * n, "a", n, n + 1, 0) for n in range(3)]
    assert updates_module.strengths(trace, 2, words).tolist() == [0, 128, 255]


def test_layers_are_listed_with_those_that_are_not_watched(run):
    reasons = {"layers.0.self_attn": "attention", "layers.10.y": "y"}
    run.unwatched = {path: f"not watched: {reason}" for path, reason in reasons.items()}
    value = view_state(run)
    assert [layer["channels"] for layer in value["layers"]] == [3, 3]
    assert value["picker"] == [
        [0, "1: layers.0.x · test"], [-1, "layers.0.self_attn · not watched: attention"],
        [1, "2: layers.1.x · test"], [-1, "layers.10.y · not watched: y"],
    ]  # fmt: skip
    run.trace = Trace([], 1000, 0)
    hint = "Nothing to show: the layers are not watched: y."  # what was refused comes last
    assert view_state(run) == {"hint": hint}


def test_runs_of_a_conversation_share_their_beginning(chat, run):
    first, second = chat.say("one"), chat.say("two")
    assert common_prefix(second, first) == {"earlier": first.id, "common": len(first.pieces)}
    assert common_prefix(run, first)["common"] == 0
    assert common_prefix(first, None) == common_prefix(first, first) == {}


def test_only_chats_have_words(updates, ask, engine, finished):
    run = finished(engine.submit("tiny", "hello", Sampling(0), 3))
    assert ask(run.id, 0, 0, 0)["words"] is None
    assert updates.words(run) == []


def job(run, trace, first, *rest):
    if first < 0:
        raise InputError("/home/me/words: too early")
    return [run.id, trace.tokens, first, *rest]


async def later(run, trace):
    raise InputError("late")


def test_a_request_has_a_run_and_integers_or_no_answer(engine, run):
    def ask(request, job=job):
        return asyncio.run(served(engine.recorded, WorkerPool(1, 1), job)(request))

    assert ask([run.id, 1]) == [run.id, run.trace.tokens, 1]
    assert ask([run.id, 1, 2])[2:] == [1, 2]
    assert ask([run.id, -1]) == {"error": "words: too early"}
    assert ask([run.id], later) == {"error": "late"}
    wrong = [None, 5, "x", {}, {"0": run.id}, [], [run.id]]
    wrong += [[id, 1] for id in (None, [run.id], "unknown")]
    wrong += [[run.id, value] for value in ("0", None, [], 0.5, True, float("nan"), {})]
    assert {*map(ask, wrong)} == {None}
