"""Tokenizers and templates of foreign models: bounded, ended, and started again."""

import os
import signal
from pathlib import Path

import pytest
from helpers.errors import refusal
from helpers.hostile import SLOW_TEXT, TEMPLATES, TOKENIZERS, save_hostile_model
from helpers.models import save_tiny_model
from helpers.steps import result
from mlx_gateloop.app.server import isolation
from mlx_gateloop.app.server.isolation import Bounds, Isolated

from mlx_gateloop.generate import Sampling

BOUNDS = Bounds(seconds=1)
HELLO = [{"role": "user", "content": "hello"}]
GREEDY = Sampling(0)


def test_a_foreign_model_answers_as_an_embedded_one(make_engine, make_chat):
    here, apart = make_chat(make_engine()), make_chat(make_engine(bounds=Bounds()))
    for text in ("hello", "naïve 🙂 </s>", "more"):
        expected, found = here.say(text), apart.say(text)
        assert found.pieces == expected.pieces
        assert found.stats.prompt_tokens_read == expected.stats.prompt_tokens_read
    assert found.begin > 0  # from the cached state


ENDED = {"nested loops", "long string", "power"}  # others end by themselves, with an error


@pytest.fixture
def errors_of(make_engine, tmp_path, until, finished):
    """Errors of hostile models, each one line; a good model answers meanwhile and after."""

    def errors_of(*kinds):
        for kind in kinds:
            save_hostile_model(tmp_path / kind, kind)
        save_tiny_model(tmp_path / "good", chat=True, hidden_size=16, intermediate_size=32)
        engine, prompt = make_engine(tmp_path, bounds=BOUNDS), [dict(HELLO[0], content=SLOW_TEXT)]
        bad = [engine.submit(kind, prompt, GREEDY, 5) for kind in kinds]
        assert finished(engine.submit("good", HELLO, GREEDY, 5)).text
        for run in bad:
            until(run)
            assert run.error
            assert "\n" not in run.error
            assert len(run.error) <= 200
            assert "/home" not in run.error
            assert not run.pieces
        assert finished(engine.submit("good", HELLO, GREEDY, 5)).text
        return [run.error for run in bad]

    return errors_of


def test_hostile_templates_and_tokenizers_fail_in_one_line(errors_of):
    power, long, regex = errors_of("power", "long error", "regex")
    assert power == (
        "model: its chat template was stopped: it takes more than 1 seconds or 2 GB of memory; "
        "use another model"
    )
    assert long.startswith("messages: the chat template rejects them: secret xxx")
    assert "cannot encode it" in regex


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEMPLATES | TOKENIZERS)
def test_every_kind_fails_in_one_line(errors_of, kind):
    (line,) = errors_of(kind)
    assert ("was stopped" in line) == (kind in ENDED)


def test_an_ended_process_is_started_again(tmp_path):
    tokenizer = Isolated(str(save_tiny_model(tmp_path / "model", chat=True)), BOUNDS)
    assert result(tokenizer.call("encode", "abc", None)) == [97, 98, 99]
    os.kill(tokenizer._child[0].pid, 9)
    tokenizer._child[0].join()
    assert "its tokenizer was stopped" in refusal(result, tokenizer.call("encode", "abc", None))
    assert result(tokenizer.call("encode", "abc", None)) == [97, 98, 99]


def test_a_stopped_call_leaves_no_reply_and_a_process_ends_with_its_tokenizer(tmp_path):
    tokenizer = Isolated(str(save_tiny_model(tmp_path / "model")), BOUNDS)
    result(tokenizer.call("special_ids"))
    stopped = tokenizer.call("texts", [97] * 2000)
    process = tokenizer._child[0]
    os.kill(process.pid, signal.SIGSTOP)
    next(stopped)
    stopped.close()
    os.kill(process.pid, signal.SIGCONT)
    assert result(tokenizer.call("encode", "abc", None)) == [97, 98, 99]
    del tokenizer
    process.join()
    assert process.exitcode == 0


def test_limits_of_the_app_itself_are_kept(monkeypatch):
    given = []
    monkeypatch.setattr(isolation.resource, "getrlimit", lambda kind: (1, 2))
    monkeypatch.setattr(isolation.resource, "setrlimit", lambda kind, limit: given.append(limit))
    isolation._limit(2**30)
    isolation._limit_time(1000)
    assert given == [(0, 0), (2, 2), (2, 2)][: 2 + Path("/proc").exists()]  # or memory has none


def test_a_tokenizer_that_cannot_be_loaded_is_one_line(tmp_path):
    path = save_tiny_model(tmp_path / "model")
    (path / "tokenizer.json").write_text("{")
    tokenizer = Isolated(str(path), BOUNDS)
    for _ in range(2):
        line = refusal(result, tokenizer.call("special_ids"))
        assert line.startswith("model: its tokenizer cannot be loaded")
