"""The words' questions to the server: strengths of the trace, and no trust in a request."""

import asyncio
import base64
import gc
import threading
import weakref

import numpy as np
import pytest
from mlx_gateloop.app.generation.probes import Probe
from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.generation.words import SHOWN
from mlx_gateloop.app.page import chat_words
from mlx_gateloop.app.page.updates import Updates


@pytest.fixture
def ask(engine, updates, asking):
    return asking(chat_words.chat_words(engine, updates))


@pytest.fixture
def run(chat):
    chat.messages.append({"role": "system", "content": "be brief"})
    chat.say("One two.")
    return chat.say("Three four", max_tokens=12)


def test_words_are_as_strong_as_when_a_word_was_read(ask, updates, run):
    found = updates.words(run)
    codes = np.frombuffer(base64.b64decode(ask("strengths_when", run.id, 2)), np.uint8)
    row = run.trace.retention(found[2].stop - 1)
    shares = np.array([row[word.first : word.stop].max() for word in found[:3]])
    assert ((codes - 1.0) / 254) ** 2 == pytest.approx(shares / shares.max(), abs=0.005)
    for at in (-1, len(found)):
        assert ask("strengths_when", run.id, at) is None


def test_the_other_answer_is_compared_and_ends_with_undo(ask, run):
    def text(side):
        return "".join(part for part, _ in answer[side])

    assert ask("counterfactual", run.id) is None
    begun, answer = ask("again", run.id, 0, 2, 0, 0), {"done": False}
    while not answer["done"]:
        answer = ask("counterfactual", run.id)
        assert answer["run"] == begun["run"]
        assert text("before") == run.text.translate(SHOWN)
    assert answer["error"] is None
    for wrong in ([0, 1, 9, 0], [0, 1, -1, 0], [0, 1, 0, 9], [0, 1, 0, -1]):
        assert ask("again", run.id, *wrong) is None
    assert text("after") == "".join(run.counterfactuals[0].answer).translate(SHOWN)
    assert ask("undo", run.id) == {}
    assert ask("counterfactual", run.id) is None
    for chosen in ((0, 10**9), (2, 2)):  # the answer's own words, or none
        assert "before the last answer" in ask("again", run.id, *chosen, 0, 0)["error"]


@pytest.mark.parametrize(("before", "after", "done", "expected"), [
    ("a b", "a b", True, ([("a b", False)], [("a b", False)])),
    ("a b c", "a x c", True, ([("a", False), (" b", True), (" c", False)],) * 2),
    ("a b c", "a", False, ([("a", False), (" b c", False)], [("a", False)])),
    ("a b c", "a", True, ([("a", False), (" b c", True)], [("a", False)])),
    ("", "", True, ([], [])),
    ("c" + "." * 250, "." * 250, True, ([("c", True), ("." * 250, False)], [("." * 250, False)])),
])  # fmt: skip
def test_words_that_changed_are_told_from_those_that_did_not(before, after, done, expected):
    runs = [Run("tiny", pieces=[Token(text, 0, "answer")]) for text in (before, after)]
    runs[1].done = done
    answer = chat_words._compared(*runs)
    changed = [(text.replace(" x", " b"), part) for text, part in answer["after"]]
    assert (answer["before"], changed) == expected


def test_what_a_word_needed(ask, updates, run):
    found = updates.words(run)
    answer = ask("depends", run.id, 3)
    assert answer["unit"] == "words"
    assert answer["units"] == [[n, n + 1] for n in range(3)]
    assert len(answer["losses"]) == 3
    assert "no word before" in ask("depends", run.id, 0)["error"]
    assert ask("depends", run.id, len(found)) is None


async def test_another_word_ends_the_work_for_the_one_before(run, engine, updates):
    component, go_on = chat_words.chat_words(engine, updates), threading.Event()
    engine.enqueue("tiny", Probe(lambda _: [go_on.wait()]))  # so that neither is done too early
    first, second = (asyncio.ensure_future(component.depends([run.id, n])) for n in (3, 4))
    await asyncio.wait([first], timeout=10)
    go_on.set()
    assert await first is None
    assert len((await second)["losses"]) == 4


def test_a_run_that_is_no_longer_kept_takes_no_memory(make_engine, make_chat, until, asking):
    engine = make_engine(runs=1)
    updates, chat = Updates(engine.recorded), make_chat(engine)
    ask = asking(chat_words.chat_words(engine, updates))

    def look():
        run = chat.say("One two.")
        assert ask("strengths_when", run.id, 0)
        assert ask("again", run.id, 0, 1, 0, 0)["run"]
        until(engine.enqueue("tiny", None))
        return weakref.ref(run)

    first, second = look(), look()
    gc.collect()
    assert first() is None
    assert second() is not None
