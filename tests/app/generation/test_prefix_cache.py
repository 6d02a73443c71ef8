"""A conversation goes on from its state: exactly, reading only what is new."""

from dataclasses import replace

import numpy as np
import pytest
from mlx_gateloop.app.generation.prefix_cache import PrefixCache, PrefixState
from mlx_gateloop.app.page.sharing import share
from mlx_gateloop.app.page.updates import view_state

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling

MODEL = "tiny"


@pytest.fixture
def model(models_folder):
    return gl.load(models_folder / MODEL)


def test_a_message_reads_only_itself_however_long_the_chat(chat, model):
    chat.say("x" * 1500)
    read = [chat.say("same question", seed).stats for seed in range(5)]
    text = "<|im_end|>\n<|im_start|>user\nsame question<|im_end|>\n<|im_start|>assistant\n"
    own = len(model[1].encode(text, add_special_tokens=False))
    assert [stats.prompt_tokens_read for stats in read] == [own] * 5
    totals = [stats.prompt_tokens for stats in read]
    assert totals[0] > 1500
    assert np.diff(totals).tolist() == [own + stats.tokens for stats in read[:-1]]
    assert len({stats.state_bytes for stats in read}) == 1


def test_a_stopped_answer_ends_within_a_token_and_is_gone_on_from(chat, engine, finished, until):
    chat.messages.append({"role": "user", "content": "hello"})
    run = engine.submit(MODEL, chat.messages, Sampling(1.0, seed=1), 1000, True, "c")
    until(run, 60)
    run.cancel()
    pieces = len(run.pieces)
    chat.messages.append({"role": "assistant", "content": finished(run).text})
    assert run.stopped
    assert pieces <= len(run.pieces) <= pieces + 1
    assert run.trace.tokens == len(run.pieces)  # what was said last is in the state
    after = chat.say("go on")
    assert after.begin == len(run.pieces) > 0
    assert after.stats.prompt_tokens == len(run.pieces) + after.stats.prompt_tokens_read


def test_conversations_and_models_do_not_see_each_other(chat, engine, make_chat):
    chat.say("hello")
    for other in (make_chat(engine, "another"), make_chat(engine, "c", "fixed")):
        stats = other.say("hello").stats
        assert stats.prompt_tokens_read == stats.prompt_tokens > 1
    none = make_chat(engine, None)
    none.say("hello")
    assert none.say("more").stats.prompt_tokens_read > 40
    engine.prefix_cache.forget("c")
    assert not chat.prefix_states()


def evicted(chat, finished):
    chat.say("hello")
    for _ in range(chat.engine.limits.runs + 1):
        finished(chat.engine.submit(MODEL, "x", Sampling(1.0, seed=1), 1))
    return chat.say("more")


def retried_without_view(chat, _):
    chat.say("hello", record=False)
    del chat.messages[-1]
    return chat.answer()


def opened(chat, _):
    chat.say("hello")
    states, fingerprint = chat.prefix_states(), chat.engine.models.fingerprint(MODEL)
    for state in states:  # as conversations.file does
        chat.engine.prefix_cache.put("opened", fingerprint, replace(state, run=None))
    chat.conversation = "opened"
    return chat.say("more")


@pytest.mark.parametrize("lose", [evicted, retried_without_view, opened])
def test_a_lost_trace_is_recorded_again_if_short(make_engine, make_chat, finished, lose, model):
    run = lose(make_chat(make_engine(runs=2), "c"), finished)
    assert not run.earlier
    ids = [piece.id for piece in run.pieces]
    assert run.trace.tokens == len(ids) == run.stats.prompt_tokens + run.stats.tokens
    expected = gl.watch.trace_of(model[0], np.array(ids)).magnitude(0)
    np.testing.assert_allclose(run.trace.magnitude(0), expected, atol=1e-3)
    assert run.text == "".join(p.text for p in run.pieces[-run.stats.tokens :])
    run = lose(make_chat(make_engine(runs=2, reread_tokens=1), "c"), finished)  # too long
    assert run.stats.prompt_tokens_read < run.stats.prompt_tokens
    assert view_state(run)["unrecorded"] == len(run.earlier) > 0
    assert "not recorded" in share(run, run.trace, 0)["page"]


STATE = np.zeros(25_000, np.float32)  # 100 kB
MESSAGES = tuple(("user", str(n)) for n in range(9))


def put(cache, name, n, **more):
    fields = {"text": "", "ids": (1,), "states": (STATE,)} | more
    return cache.put(name, "f", PrefixState(MESSAGES[:n], unread=1, **fields))


def lengths(cache, *names, key="f"):
    """Return how many messages the kept states of each conversation have read."""
    return [[len(each.messages) for each in cache.prefixes(name, key, MESSAGES)] for name in names]


def test_what_is_kept_is_bounded():
    cache = PrefixCache(6, max_bytes=10**9)
    for name in ("a", "b", "c"):
        for n in range(1, 4):
            put(cache, name, n)
    assert lengths(cache, "a", "b", "c") == [[], [1, 2, 3], [1, 2, 3]]
    assert lengths(cache, "c", key="g") == [[]]


def test_what_is_kept_is_bounded_in_bytes():
    cache = PrefixCache(9, max_bytes=510_000)
    for name, n in (("old", 1), ("old", 2), ("old", 3), ("new", 1), ("new", 1), ("new", 2)):
        put(cache, name, n)  # the second "new" replaces the one before
    assert lengths(cache, "new", "old") == [[1, 2], [1, 2, 3]]  # the old one was used last
    put(cache, "third", 1)
    assert lengths(cache, "new", "old", "third") == [[2], [1, 2, 3], [1]]
    put(cache, "third", 2, text="x" * 200_000)  # texts and tokens count too
    assert lengths(cache, "new", "old", "third") == [[], [3], [1, 2]]
    put(cache, "third", 3, ids=tuple(range(10**5, 10**5 + 10**4)))
    assert lengths(cache, "old", "third") == [[], [3]]
    cache.forget("third")
    assert put(cache, "x", 1)
    assert not put(cache, "y", 1, states=(STATE,) * 6)  # larger than the limit
    assert lengths(cache, "x", "y", "third") == [[1], [], []]
