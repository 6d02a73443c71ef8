"""The page's handlers: each tab has its own runs, and nothing blocks the event loop."""

import asyncio
import base64
import json
import re
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.models import save_tiny_model
from mlx_gateloop.app.conversations.folder import ConversationFolder
from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.page import chat_tab
from mlx_gateloop.app.page.controls import stream
from mlx_gateloop.app.page.handlers import Handlers, new_session, status, user_error
from mlx_gateloop.app.page.updates import OFF

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

gr = pytest.importorskip("gradio")
VALUES = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
VALUES |= {"max_tokens": 24, "seed": 1, "record": True, "lookup": False}
LONG = VALUES | {"max_tokens": 1024}
ENDLESS = "x" * 40


@pytest.fixture
def handlers(engine):
    return Handlers(engine, "tiny")


async def collect(updates):
    return [update async for update in updates]


def last(updates):
    return asyncio.run(collect(updates))[-1]


def chat(handlers, text, session, history=(), model="tiny", **values):
    return handlers.chat(text, [*history], session, model, "", **VALUES | values)


async def test_a_chat_answers_and_keeps_what_is_typed_meanwhile(handlers):
    updates = await collect(chat(handlers, "hello", new_session()))
    assert updates[0][0] == ""
    assert all(update[0] == gr.skip() for update in updates[1:])
    history = updates[-1][1]
    assert [message["role"] for message in history] == ["user", "assistant"]
    assert history[1]["content"]
    views = [update[3] for update in updates if update[3]]
    assert {view["run"] for view in views} == {next(iter(handlers.engine.recorded._runs))}
    latest = json.loads(views[-1]["update"])  # with the text come the columns and the words
    assert latest["done"]
    assert latest["tokens"] == latest["known"] + len(latest["pieces"])
    assert latest["words"]["strengths"]


def test_without_the_live_view_nothing_is_recorded(handlers):
    _, history, _, view, figures = last(chat(handlers, "hello", new_session(), record=False))
    assert history[1]["content"]
    assert view == {"hint": OFF}
    assert "stopped at the limit of 24 tokens" in figures
    assert not handlers.engine.recorded._runs  # nothing is kept that nobody can look at


async def test_stop_ends_the_runs_of_one_tab_of_one_visitor(handlers):
    me, other = new_session(), new_session()
    chats = [chat(handlers, ENDLESS, who, max_tokens=1024) for who in (me, other)]
    tabs = [*chats, handlers.complete(ENDLESS, me, "tiny", **LONG)]
    for updates in [*tabs, *chats]:  # chats say what was asked first
        await anext(updates)
    runs = {key: run for key, (run,) in handlers._running.items()}
    assert {*runs} == {(me, "chat"), (other, "chat"), (me, "complete")}
    handlers.stop(me, "chat")
    assert [key for key, run in runs.items() if run.stopped] == [(me, "chat")]
    for updates in tabs:
        await updates.aclose()
    while handlers._running:  # the loop closes what they awaited
        await asyncio.sleep(0.01)
    assert all(run.stopped for run in runs.values())  # as if the tabs were closed


async def test_a_late_failure_keeps_what_was_written(handlers, monkeypatch):
    me, stream = new_session(), handlers._stream

    async def failing(*arguments):
        async for update in stream(*arguments):
            yield update
            if update[0][0].text:
                raise user_error("the model is out of memory")

    monkeypatch.setattr(handlers, "_stream", failing)
    with suppress(gr.Error):
        async for update in chat(handlers, "hello", me):
            box, history, *_ = update
    assert box != "hello"  # which is sent, and the next message may be typed
    assert [bool(message["content"]) for message in history] == [True, True]
    assert handlers.sessions.get(me) == (history, None)


async def test_a_slow_hub_holds_up_nobody_else(handlers, monkeypatch):
    waiting, go_on = threading.Event(), threading.Event()

    def fetch(model):
        if model == "fixed":
            waiting.set()
            assert go_on.wait(120)
        return True

    monkeypatch.setattr(handlers.engine.models, "is_local", lambda model: model != "fixed")
    monkeypatch.setattr(handlers.engine.models, "fetch", fetch)
    slow = asyncio.create_task(handlers.prepare("fixed"))
    while not waiting.is_set():
        await asyncio.sleep(0.01)
    await collect(handlers.complete("abc", new_session(), "tiny", **VALUES))
    assert not slow.done()
    go_on.set()
    assert await slow == ("2 layers of 16 channels, fixed transitions", "This model has no card.")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("what", ["clear", "stop"])
async def test_an_answer_ended_as_its_model_is_fetched_is_none(handlers, monkeypatch, what, fails):
    me, asked, go_on = new_session(), asyncio.Event(), asyncio.Event()

    async def fetch(model):
        asked.set()
        await go_on.wait()
        if fails:
            raise InputError("there is no such model")

    monkeypatch.setattr(handlers.engine, "fetch", fetch)
    updates = chat(handlers, "hello", me)
    answer = asyncio.create_task(anext(updates, None))
    await asked.wait()
    if what == "clear":
        await handlers.clear(me)
    else:
        handlers.stop(me, "chat")
    go_on.set()
    assert await answer is None  # whatever the page shows by then
    assert await collect(updates) == []
    assert not handlers._running
    assert not handlers.engine.recorded._runs


async def test_a_newer_answer_of_the_tab_ends_the_older_one(handlers):
    me = new_session()
    older = chat(handlers, ENDLESS, me, max_tokens=1024)
    await anext(older)
    (run,) = handlers._running[me, "chat"]
    *_, newer = await collect(chat(handlers, "hello", me))
    async for _, history, *_ in older:  # it does not write over the newer one
        assert history == newer[1]
    assert run.stopped
    assert newer[1][0]["content"] == "hello"
    assert not handlers._running


@pytest.mark.parametrize(
    ("what", "reason"),
    [("x" * 16_001, "at most"), ("é" * 8_000, "at most"), ("hello", "has no chat template")],
    ids=["at once", "when read", "no template"],
)
async def test_a_refused_message_goes_back_into_the_box(make_engine, tmp_path, what, reason):
    save_tiny_model(tmp_path / "tiny", chat="template" not in reason, hidden_size=16)
    engine = make_engine(tmp_path)
    folder = ConversationFolder(tmp_path / "saved", engine.models, engine.prefix_cache)
    handlers = Handlers(engine, "tiny", folder)
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    seen = []

    async def ask():
        async for update in chat(handlers, what, new_session(), before):
            seen.append(update)

    with pytest.raises(gr.Error, match=reason):
        await ask()
    box, history, shown, _, figures = seen[-1]
    assert (box, history, figures) == (what, before, status(None))
    assert len(shown) == 2
    assert folder.names() == []


def test_side_by_side_leaves_nothing_behind_if_one_is_refused(handlers, monkeypatch):
    run = handlers.engine.submit("tiny", ENDLESS, Sampling(0), 1024)
    answers = [run, InputError("the queue is full")]
    monkeypatch.setattr(handlers.engine, "submit", Mock(side_effect=answers))
    with pytest.raises(gr.Error, match="is full"):
        last(handlers.compare(ENDLESS, new_session(), "tiny", "fixed", False, **LONG))
    assert run.stopped


def test_a_wrong_value_or_an_empty_text_is_a_line_for_the_visitor(handlers):
    me = new_session()
    asked = {
        name: handlers.complete("abc", me, "tiny", **VALUES | {name: value})
        for name, value in {"temperature": "hot", "max_tokens": 10**6, "seed": -5}.items()
    }
    asked["Type a message"] = chat(handlers, "  ", me)
    asked["Type the beginning"] = handlers.complete("\n", me, "tiny", **VALUES)
    asked["Type a prompt"] = handlers.compare("", me, "tiny", "fixed", False, **VALUES)
    imported = [{"role": "assistant", "content": "Well"}]  # an answer without a question
    asked["chat template"] = handlers.go_on(imported, me, model="tiny", system="", **VALUES)
    for line, updates in asked.items():
        with pytest.raises(gr.Error, match=line):
            last(updates)
    with pytest.raises(gr.Error, match="there is no &#x27;nothing&#x27;"):
        asyncio.run(handlers.prepare("nothing"))


def test_a_page_that_is_loaded_again_gets_its_chat(handlers):
    def resume(session=None):
        return asyncio.run(handlers.resume(me, session or new_session()))

    me = new_session()
    history = last(chat(handlers, "hello", me))[1]
    session, kept, messages, _, view, _ = resume()
    assert (session, kept, messages) == (me, me, history)
    assert handlers.engine.recorded.get(view["run"]).text == history[1]["content"]
    handlers.forget(me)  # the page before it
    assert resume()[2] == history
    pairs = tuple((message["role"], message["content"]) for message in history)
    key = handlers.engine.models.fingerprint("tiny"), pairs
    assert handlers.engine.prefix_cache.prefixes(me, *key)
    asyncio.run(handlers.clear(me))
    assert resume()[2] == []
    for _ in range(3):
        handlers.forget(me)
    session, kept, messages, *_ = resume("new")
    assert (session, kept, messages) == (gr.skip(), "new", gr.skip())
    assert not handlers.engine.prefix_cache.prefixes(me, *key)


async def test_a_copy_of_a_tab_that_is_answered_begins_another_chat(handlers, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.app.page.handlers.LEAVING_SECONDS", 0)
    me = new_session()
    updates = chat(handlers, ENDLESS, me, max_tokens=1024)
    await anext(updates)
    session, kept, messages, *_ = await handlers.resume(me, "copy")
    assert (session, kept, messages) == (gr.skip(), "copy", gr.skip())
    handlers.forget(me)  # no other page continues it
    assert handlers.sessions.get(me) == ([], None)
    await collect(updates)


async def test_a_question_is_saved_before_its_answer(engine, tmp_path):
    folder = ConversationFolder(tmp_path, engine.models, engine.prefix_cache)
    handlers, me = Handlers(engine, "tiny", folder), new_session()
    updates = chat(handlers, ENDLESS, me, max_tokens=1024)
    while not folder.names():
        await anext(updates)
    (name,) = folder.names()
    assert folder.open(name)[2][0] == {"role": "user", "content": ENDLESS}
    handlers.stop(me, "chat")
    assert (await collect(updates))[-1][1] == folder.open(name)[2]


def test_undo_shows_the_view_of_what_is_left(handlers):
    me = new_session()
    first = last(chat(handlers, "one", me))[1]
    assert last(chat(handlers, "two", me, first))[3]["common"] > 0  # the page has the beginning
    left, _, view, _ = handlers.undo(first, me, "tiny", "")
    assert left == first
    assert handlers.engine.recorded.get(view["run"]).text == first[1]["content"]
    assert handlers.undo([], me, "tiny", "")[2] is None
    assert "next answer" in handlers.undo(first[:1], me, "tiny", "")[2]["hint"]  # only asked
    for model in ("fixed", "none"):  # another model has read nothing of it
        assert "next answer" in handlers.undo(first, me, model, "")[2]["hint"]


def test_an_answer_from_a_state_is_found_again_with_it(handlers, models_folder, tmp_path):
    model, tokenizer = gl.load(models_folder / "tiny")
    read, me = gl.State(model.make_cache()), new_session()
    read.read(model, [7, 8, 9])
    gl.write_state(tmp_path / "state", gl.State(read.cache), model, tokenizer)
    data = (tmp_path / "state").read_bytes()
    state = ["calm<.state", len(data), base64.b64encode(data).decode()]  # as the page sends it
    _, first, _, view, figures = last(chat(handlers, "one", me, state=state))
    assert re.search("speaks as <b>calm&lt;.state, [0-9]+% left</b>", figures)
    assert handlers.undo(first, me, "tiny", "", state)[2]["run"] == view["run"]
    assert "next answer" in handlers.undo(first, me, "tiny", "")[2]["hint"]


def test_the_figures_of_a_run():
    run, line = Run("tiny"), '<div class="stats{}"><span>{}</span></div>'
    assert status(None) == line.format("", "ready")
    assert "<p>&lt;b&gt;: no space</p>" in status(None, problem="<b>: no space")
    assert status(run) == line.format(" running", "waiting for the model")
    run.stats.waiting_seconds = 2.34
    assert status(run) == line.format(" running", "waited <b>2.3 s</b>")
    run.stats.waiting_seconds = 0
    run.finish("no memory")
    assert status(run) == line.format("", "failed")  # and waits for nothing


@pytest.mark.parametrize(("reason", "line"), [
    ("end", "done"), ("limit", "stopped at the limit of 5 tokens"),
    ("stop", "stopped at the stop text"), ("", "stopped"),
])  # fmt: skip
def test_the_reason_of_an_end_is_said_and_what_was_cut_can_be_continued(reason, line):
    run = Run("x", pieces=[Token("word", 7, "answer")], reason=reason, max_tokens=5, done=True)
    run.stopped = not reason
    shown = status(run)
    assert f"<span>{line}</span>" in shown
    assert ("cut" in shown) == (line != "done")


def test_continue_goes_on_with_the_same_random_numbers_and_inside_a_letter(handlers, monkeypatch):
    """As if the limit had been higher, wherever it was."""
    me, sampling = new_session(), VALUES | {"temperature": 1.0}
    whole = last(chat(handlers, "hello", new_session(), **sampling | {"max_tokens": 12}))[1]
    assert [letter for letter in whole[1]["content"] if letter > "\x7f" and letter != "\ufffd"]
    for limit in range(1, 12):
        history = last(chat(handlers, "hello", me, **sampling | {"max_tokens": limit}))[1]
        rest = sampling | {"max_tokens": 12 - limit, "seed": -1}
        assert last(handlers.go_on(history, me, model="tiny", system="", **rest))[0] == whole, limit
    (nothing := Run("tiny")).finish()
    monkeypatch.setattr(handlers.engine, "submit", lambda *_, **__: nothing)
    more = handlers.go_on(whole, me, model="tiny", system="", **VALUES)
    assert last(more)[0] == handlers.sessions.get(me)[0] == whole


def test_what_was_cut_can_be_continued_after_a_refused_request(handlers, monkeypatch):
    """The page shows the error, too."""
    me = new_session()
    history = last(chat(handlers, "hello", me))[1]

    def on_page(updates):
        return stream(lambda by_name, *_, **__: by_name, lambda: updates, {}, [None] * 5)()

    monkeypatch.setattr(handlers.engine, "submit", Mock(side_effect=InputError("server: busy")))

    async def shown(updates):
        with suppress(gr.Error):
            async for update in updates:
                latest = update
        return latest

    more = handlers.go_on(history, me, model="tiny", system="", **VALUES)
    for updates in (more, chat(handlers, "more", me, history), chat(handlers, " ", me, history)):
        status = asyncio.run(shown(on_page(updates)))[-1]
        assert "cut" in status
        assert re.search("server: busy|Type a message", status)
        assert handlers.sessions.get(me)[1] is not None
    assert "cut" not in asyncio.run(shown(chat(handlers, "more", me, [*history, *history])))[-1]
    assert handlers.sessions.get(me)[0] == [*history, *history]  # as a page with other messages


@pytest.mark.parametrize(
    "handler", [chat_tab._retry, chat_tab._edit, partial(chat_tab._undo, typed="")]
)
def test_a_message_that_a_page_makes_up_is_refused(handler):
    for index in (None, "a", [], {}, -1, [-1], [None], True):
        event = None if index is None else SimpleNamespace(index=index, value="x")
        with pytest.raises(gr.Error, match="Choose a message"):
            handler([{"role": "user", "content": "a"}], event=event)
