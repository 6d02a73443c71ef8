"""The engine: one thread for everyone; runs that neither mix, nor leak, nor outlive a stop."""

import asyncio
import gc
import threading
import time
import weakref
from shutil import copytree
from unittest.mock import AsyncMock, Mock

import mlx.core as mx
import pytest
from helpers.errors import refusal
from helpers.interpreter import python
from helpers.waiting import wait_for
from mlx_gateloop.app.generation.chat_tokenizer import ChatTokenizer
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.run import public_line

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.watch.storage import total_bytes

GREEDY = Sampling(temperature=0)
HELLO = [{"role": "user", "content": "hello"}]
PanicException = type("PanicException", (BaseException,), {})  # as PyO3 makes it
ENDLESS = "x" * 40  # the greedy answer to it does not end before the tests' limits


def ask(engine, prompt=HELLO, sampling=GREEDY, max_tokens=24, model="tiny", **options):
    return engine.submit(model, prompt, sampling, max_tokens, **options)


@pytest.mark.parametrize(
    ("prompt", "penalty"), [(HELLO, 1.7), ("abc", 1.0), ("", 1.0), ("naïve 🙂 " * 60, 1.7)]
)
def test_greedy_text_is_that_of_generate(engine, finished, models_folder, prompt, penalty):
    sampling = Sampling(temperature=0, repetition_penalty=penalty)
    run = finished(ask(engine, prompt, sampling))
    expected = "".join(stream(*gl.load(models_folder / "tiny"), prompt, sampling, max_tokens=24))
    assert run.text == expected
    assert run.stats.tokens == len([p for p in run.pieces if p.kind == "answer"]) > 0
    assert run.trace.tokens == len(run.pieces) == run.stats.prompt_tokens + run.stats.tokens
    assert run.stats.state_bytes == 2 * (2 + 3) * 16 * 4  # layers, planes and inputs, channels


def test_pieces_say_what_was_read_and_how_likely_the_answer_was(engine, finished):
    run = finished(ask(engine))
    prompt, answer = run.pieces[: run.answer_begin], run.pieces[run.answer_begin :]
    expected = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(piece.text for piece in prompt) == expected
    assert {(piece.kind, piece.candidates) for piece in prompt} == {("prompt", ())}
    _, tokenizer = gl.load(engine.models.roots[0] / "tiny")
    for piece in answer:
        chances = [chance for _, chance in piece.candidates]
        assert len(chances) == 8
        assert 1 > sum(chances) > chances[0] == max(chances) > 1 / 263
        assert piece.candidates[0][0] == tokenizer.decode([piece.id])  # the likeliest was taken


def test_a_seed_fixes_the_text_and_no_seed_does_not(engine, finished):
    def text(seed, temperature=1.0):
        return finished(ask(engine, "abc", Sampling(temperature, 0.95, 50, 0.01, 1.1, seed))).text

    assert text(1) == text(1)
    assert len({text(1), text(2), text(3)}) == 3
    assert len({text(None) for _ in range(3)}) == 3


def test_runs_take_turns(engine, finished, until):
    together = [ask(engine, ENDLESS, max_tokens=150, model=name) for name in ("tiny", "fixed")]
    until(together[1], len(ENDLESS) + 5)
    assert not together[0].done  # the second began before the first had ended
    for run in map(finished, together):
        assert run.text == finished(ask(engine, ENDLESS, max_tokens=150, model=run.model)).text


def test_a_long_prompt_can_be_stopped_while_it_is_read(make_engine, until):
    run = ask(make_engine(characters=10**6, input_tokens=10**6), "long " * 20_000)
    wait_for(lambda: run.trace and run.trace.tokens > 0)
    run.cancel()
    until(run)
    assert run.trace.tokens < len(run.pieces) == 100_000
    assert run.text == ""


def test_the_queue_is_bounded_and_leaves_at_once(make_engine, finished, until):
    engine = make_engine(active=1, queue=2)
    running = ask(engine, ENDLESS, max_tokens=1000)
    until(running, len(ENDLESS))
    waiting = [ask(engine) for _ in range(2)]
    assert "busy, 2 requests are waiting; try again" in refusal(ask, engine)
    waiting[0].cancel()
    assert waiting[0].done
    assert not waiting[0].pieces
    another = ask(engine)
    running.cancel()
    assert finished(waiting[1]).text == finished(another).text != ""


async def test_who_leaves_while_waiting_cancels_the_run(engine, until):
    task = asyncio.create_task((run := engine.enqueue("fixed", None)).ended())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    until(run)
    assert run.stopped
    await (run := ask(engine)).ended(AsyncMock(return_value=True))
    assert run.stopped


def test_old_runs_go_and_memory_stays_flat(make_engine, finished):
    engine = make_engine(runs=3, trace_bytes=200_000)
    runs = [finished(ask(engine, ENDLESS, max_tokens=100)) for _ in range(10)]
    kept = [run for run in runs if engine.recorded.get(run.id)]
    assert kept == runs[-len(kept) :]
    assert 1 <= len(kept) <= 4
    assert total_bytes(run.trace for run in kept) < 2 * 200_000
    used = [run.stats.memory_bytes for run in runs[2:]]
    assert max(used) - min(used) < 8 * runs[0].stats.state_bytes  # snapshots come and go
    assert engine.recorded.get("nothing") is None
    assert len({run.id for run in runs}) == 10
    gone = weakref.ref(runs[0])
    runs.clear()
    gc.collect()
    assert gone() is None


def test_another_model_frees_the_old_one_unless_a_run_needs_it(engine, finished, monkeypatch):
    names, models, alive, load = [], [], [], Models.load

    def watched(self, name):
        names.append(name)
        alive.append(sum(model() is not None for model in models))
        loaded = load(self, name)
        models.append(weakref.ref(loaded.model))
        return loaded

    monkeypatch.setattr(Models, "load", watched)
    finished(engine.enqueue("tiny", None))
    finished(ask(engine))
    finished(ask(engine, model="fixed"))
    assert (names, alive) == (["tiny", "fixed"], [0, 0])
    for _ in range(2):  # side by side
        both = [ask(engine, ENDLESS, max_tokens=200, model=name) for name in ("fixed", "tiny")]
        assert all(map(finished, both))
    assert (names, alive) == (["tiny", "fixed", "tiny"], [0, 0, 1])


def test_closing_ends_every_run_and_the_thread(make_engine, until):
    engine = make_engine(active=1)
    runs = [ask(engine, ENDLESS, max_tokens=1000) for _ in range(3)]
    until(runs[0], 1)
    engine.close()
    engine.close()
    assert [run.done for run in runs] == [True] * 3
    assert {run.error for run in runs} == {"the engine is shut down"}
    assert "engine" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
    assert "shut down" in refusal(ask, engine)
    compiled = mx.compile(lambda x: (runs.append(x), x + 1)[1])  # as before the engine
    for _ in range(2):
        compiled(mx.ones(2))
    assert len(runs) == 4


def test_a_program_that_forgets_to_close_ends_cleanly(models_folder):
    code = f"""
import time
from pathlib import Path
from mlx_gateloop.app.generation.engine import Engine
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.generate import Sampling
folder = Path({str(models_folder)!r})
engine = Engine(Models([folder], trusted=folder))
run = engine.submit("tiny", "x" * 40, Sampling(0), 1000)
while len(run.pieces) <= 50:
    time.sleep(0.01)
"""
    assert python(code) == ""


@pytest.mark.parametrize(("options", "message"), [
    ({"model": "nothing"}, "model: there is no 'nothing'; choose one of: fixed, tiny"),
    *[({"max_tokens": n}, f"max_tokens: expected 1 to 1024, got {n}") for n in (0, 1025, 1.5)],
    ({"prompt": "x" * 16_001}, "text: 16,001 characters, at most 16,000 are allowed"),
    ({"prompt": "a\ud83d"}, "text: contains a lone surrogate"),
    ({"prompt": [{"role": "tool", "content": ""}]}, "messages: number 1: expected a role"),
    ({"prompt": [{"role": "system", "content": ""}]}, "the last one must be"),
    ({"prompt": HELLO * 401}, "messages: at most 400; start a new conversation"),
])  # fmt: skip
def test_what_is_not_allowed_is_refused_in_one_line(engine, options, message):
    assert message in refusal(ask, engine, **options)


@pytest.mark.parametrize("cached", [True, False])
def test_a_continued_answer_is_the_one_that_a_higher_limit_had_given(engine, finished, cached):
    sampling, name = Sampling(1.0, seed=5), "c" if cached else None
    whole = finished(ask(engine, sampling=sampling, max_tokens=48))
    first = finished(ask(engine, sampling=sampling, max_tokens=20, conversation=name))
    assert (first.reason, first.text) == ("limit", whole.text[: len(first.text)])
    begun = [*HELLO, {"role": "assistant", "content": first.text}]
    rest = finished(ask(engine, begun, sampling, 28, conversation=name))
    if cached:
        assert (rest.text, rest.max_tokens) == (whole.text, whole.max_tokens)
        assert [p.id for p in rest.pieces] == [p.id for p in whole.pieces]
    assert rest.text.startswith(first.text)
    assert 0 < rest.stats.tokens <= 28
    assert rest.trace.tokens == len(rest.pieces)
    if cached:  # the next turn goes on from its state
        asked = [*HELLO, {"role": "assistant", "content": rest.text}, *HELLO]
        after = finished(ask(engine, asked, conversation=name))
        assert after.stats.prompt_tokens_read < rest.stats.prompt_tokens


def test_a_stop_string_over_several_tokens_ends_the_answer_after_it(engine, finished):
    whole = finished(ask(engine, ENDLESS, max_tokens=140)).text
    for stop in (whole[7:11], whole[7:87]):
        run = finished(ask(engine, ENDLESS, max_tokens=140, stop=("never", stop, ENDLESS[:3])))
        assert (run.reason, run.text) == ("stop", whole[: whole.index(stop) + len(stop)])


def test_whatever_a_tokenizer_raises_the_engine_goes_on(engine, finished, until, monkeypatch):
    methods = ("render", "message_spans", "pieces", "write", "end")
    errors = [(method, PanicException) for method in methods]
    errors += [("encode", error) for error in (PanicException, SystemExit, KeyboardInterrupt)]
    for method, error in errors:
        with monkeypatch.context() as patch:
            patch.setattr(ChatTokenizer, method, Mock(side_effect=error("inside")))
            until(run := ask(engine))
            assert run.error, method
        assert finished(ask(engine)).text


def test_a_panic_of_a_template_is_told_in_one_line(engine, until, monkeypatch):
    panic = Mock(side_effect=PanicException("called `Option::unwrap()`\non a `None` value"))
    monkeypatch.setattr("mlx_lm.tokenizer_utils.TokenizerWrapper.apply_chat_template", panic)
    until(run := ask(engine))
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
    first = ask(engine, model="fixed")
    stuck.wait()
    waiting = ask(engine)
    engine.check_worker(time.monotonic())  # it may take its time
    assert not first.done
    engine.check_worker(time.monotonic() + engine.limits.loading_seconds + 1)
    until(first)
    assert first.error.startswith("the answer took too long and was stopped")
    assert finished(waiting).text
    free.set()  # the old thread comes back, and ends without doing any harm
    assert finished(ask(engine, model="fixed")).text
    assert finished(ask(engine)).text == waiting.text


def test_a_dead_thread_is_replaced(engine, finished, until, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(engine.recorded, "evict", lambda: 1 / 0)
        until(run := ask(engine))
    assert run.error == "internal error; see the server's log"
    assert finished(ask(engine)).text  # the watchdog has noticed
    assert "starting another one" in caplog.text


def test_all_names_of_a_model_load_it_once(engine, finished, monkeypatch):
    monkeypatch.setattr(engine.models, "load", load := Mock(wraps=engine.models.load))
    for name in ("tiny", "./tiny", "tiny/../tiny", str(engine.models.roots[0] / "tiny")):
        finished(ask(engine, model=name))
    load.assert_called_once_with("tiny")


def test_a_model_that_was_replaced_is_loaded_again(make_engine, finished, models_folder, tmp_path):
    engine, texts = make_engine(tmp_path), []
    for name in ("tiny", "fixed"):
        copytree(models_folder / name, tmp_path / "mine", dirs_exist_ok=True)
        texts += [finished(ask(engine, model="mine")).text]
    assert texts == [finished(ask(make_engine(), model=name)).text for name in ("tiny", "fixed")]


def test_visitors_get_one_short_line_without_folders():
    secret = "a: cannot be read: '/home/me/.secret/x.json'\n"
    assert public_line(secret) == "a: cannot be read: 'x.json'"
    address = "either/or of https://example.org/a/b"
    assert public_line(address) == address
    assert public_line("x" * 50_000_000) == "x" * 197 + "..."


@pytest.mark.parametrize(("method", "answer", "error"), [
    ("encode", [10**9], "model: its tokenizer uses id 1000000000"),
    ("special_ids", (None, [], []), "prompt: empty"),
])  # fmt: skip
def test_tokens_a_model_cannot_read_end_it(engine, until, monkeypatch, method, answer, error):
    monkeypatch.setattr(ChatTokenizer, method, lambda *arguments: answer)
    until(run := ask(engine, ""))
    assert run.error.startswith(error)
