"""Workers that die or get stuck: waiting runs get an error, and the next ones are served."""

import threading
import time

import pytest
from mlx_gateloop.app.generation.chat_tokenizer import ChatTokenizer
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.run import public_line

from mlx_gateloop.generate import Sampling

HELLO = [{"role": "user", "content": "hello"}]


def ask(engine, model="tiny"):
    return engine.submit(model, HELLO, Sampling(0), 5)


class PanicException(BaseException):  # as PyO3 makes it
    pass


def test_whatever_a_tokenizer_raises_the_engine_goes_on(engine, finished, until, monkeypatch):
    methods = ("render", "message_spans", "pieces", "write", "end")
    errors = [(method, PanicException) for method in methods]
    errors += [("encode", error) for error in (PanicException, SystemExit, KeyboardInterrupt)]
    for method, error in errors:

        def broken(*arguments, error=error):
            raise error("inside")

        with monkeypatch.context() as patch:
            patch.setattr(ChatTokenizer, method, broken)
            run = ask(engine)
            until(run)
            assert run.error, method
        assert finished(ask(engine)).text


def test_a_panic_of_a_template_is_told_in_one_line(engine, until, monkeypatch):
    def panic(*arguments, **options):
        raise PanicException("called `Option::unwrap()`\non a `None` value")

    monkeypatch.setattr("mlx_lm.tokenizer_utils.TokenizerWrapper.apply_chat_template", panic)
    run = ask(engine)
    until(run)
    assert run.error.startswith("messages: the chat template rejects them: called `Option")


def test_a_stuck_step_is_given_up_and_others_are_answered(engine, finished, until, monkeypatch):
    stuck, free = threading.Event(), threading.Event()
    load = Models.load

    def block(self, name):
        if name == "fixed" and not free.is_set():
            stuck.set()
            free.wait()
        return load(self, name)

    monkeypatch.setattr(Models, "load", block)
    first = ask(engine, "fixed")
    stuck.wait()
    waiting = ask(engine)
    engine.check_worker(time.monotonic())  # it may take its time
    assert not first.done
    engine.check_worker(time.monotonic() + engine.limits.loading_seconds + 1)
    until(first)
    assert first.error.startswith("the answer took too long and was stopped")
    assert finished(waiting).text
    free.set()  # the old thread comes back, and ends without doing any harm
    assert finished(ask(engine, "fixed")).text
    assert finished(ask(engine)).text == waiting.text


def test_a_dead_thread_is_replaced(engine, finished, until, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(engine.recorded, "evict", lambda: 1 / 0)
        run = ask(engine)
        until(run)
    assert run.error == "internal error; see the server's log"
    assert finished(ask(engine)).text  # the watchdog has noticed
    assert "starting another one" in caplog.text


def test_all_names_of_a_model_load_it_once(engine, finished, monkeypatch):
    names, load = [], Models.load

    def named(self, name):
        names.append(name)
        return load(self, name)

    monkeypatch.setattr(Models, "load", named)
    folder = engine.models.roots[0]
    for name in ("tiny", "./tiny", "tiny/../tiny", str(folder / "tiny")):
        finished(ask(engine, name))
    assert names == ["tiny"]


def test_visitors_get_one_short_line_without_folders():
    secret = "a: cannot be read: '/home/me/.secret/x.json'\n"
    assert public_line(secret) == "a: cannot be read: 'x.json'"
    address = "either/or of https://example.org/a/b"
    assert public_line(address) == address
    assert public_line("x" * 50_000_000) == "x" * 297 + "..."


@pytest.mark.parametrize(
    ("method", "answer", "error"),
    [
        ("encode", [10**9], "model: its tokenizer uses id 1000000000"),
        ("special_ids", (None, [], []), "prompt: empty"),
    ],
)
def test_tokens_that_the_model_cannot_read_are_refused(
    engine, until, monkeypatch, method, answer, error
):
    monkeypatch.setattr(ChatTokenizer, method, lambda *arguments: answer)
    until(run := engine.submit("tiny", "", Sampling(0), 5))
    assert run.error.startswith(error)
