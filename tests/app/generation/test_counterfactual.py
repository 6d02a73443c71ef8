"""Answers without some words, and what words depended on: as the library has it."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.recurrent import save_recurrent_model
from mlx_gateloop.app.generation import probes
from mlx_gateloop.app.generation.counterfactual import CHANGES, CounterfactualRequest, answer_again
from mlx_gateloop.app.generation.engine import Engine
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.probes import ask_channels, ask_dependence, ask_lens
from mlx_gateloop.app.generation.words import Words
from mlx_gateloop.app.server.launch import EMBEDDED

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling

QUESTION = "What does `str.split` do?"


def conversation(*texts):
    return [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(texts)]


LONGER = conversation("Hello. Hi.", "Ask me.\nGo on.", QUESTION)


@pytest.fixture(scope="module")
def engine():
    """On the demo, which has learned something: a random model hardly looks at what it has read."""
    engine = Engine(Models([EMBEDDED], trusted=EMBEDDED))
    yield engine
    engine.close()


@pytest.fixture
def run(engine, finished):
    return finished(engine.submit("demo", conversation(QUESTION), Sampling(0), 12))


@pytest.fixture(scope="module")
def model():
    return gl.load(EMBEDDED / "demo")[0]


def words_of(run):
    return Words().update(run)


def answer_of(run):
    return run.pieces[run.answer_begin :]


def test_the_same_seed_gives_the_same_answer(engine, finished):
    """Nobody gave a seed: the run has the one that was used."""
    run = finished(engine.submit("demo", LONGER, Sampling(1.5), 12, conversation="c"))
    settings = run.sampling, run.max_tokens
    again = CounterfactualRequest("", *settings, False, None, original=run, left_out=())
    assert finished(engine.enqueue(run.model, again)).text == run.text


def test_blanks_between_words_that_are_left_out_are_left_out(engine, finished):
    """Some blanks are tokens of their own; what a template writes between messages stays."""
    history = conversation("What is\n\n\nlen?", "A  function.", "And\n\n\nstr?")
    run = finished(engine.submit("demo", history, Sampling(0), 2))
    finished(answer_again(engine, run, [word for word in words_of(run) if word.message < 3]))
    tokens = sorted(set(run.counterfactuals[0].left_out))
    left_out = "".join(run.pieces[token].text for token in tokens)
    assert left_out == "".join(message["content"] for message in history)


def likeliest(run):
    return [piece.candidates[0][1] for piece in answer_of(run)]


def split_of(run):
    """Return the question's word "split", and its tokens."""
    word = next(word for word in words_of(run) if word.text == "split")
    return word, [*range(word.first, word.stop)]


def test_an_answer_without_words_is_the_one_of_a_cache_without_them(engine, finished, run, model):
    word, positions = split_of(run)
    again = finished(answer_again(engine, run, [word]))
    texts = [piece.text for piece in answer_of(again)]
    assert run.counterfactuals == [gl.watch.Counterfactual(positions, texts)]
    ids = [piece.id for piece in run.pieces[: run.answer_begin]]
    cache = gl.watch.without(model, ids[:-1], positions)
    answer = [piece.id for piece in answer_of(again)]
    chances = mx.softmax(model(mx.array([[ids[-1], *answer[:-1]]]), cache)[0], -1)
    assert chances.argmax(-1).tolist() == answer
    assert likeliest(again) == pytest.approx(chances.max(-1).tolist(), rel=1e-4)
    assert "split" in run.text
    assert "split" not in again.text


@pytest.mark.parametrize(("change", "options"), [*enumerate(CHANGES.values(), 1)])
def test_an_edited_answer_is_the_edited_models(engine, finished, run, model, change, options):
    (word, positions), channels = split_of(run), list(range(0, 120, 2))
    job = answer_again(engine, run, [word], change, [0, 2], channels)
    beside = engine.submit("demo", conversation(QUESTION), Sampling(0), 12)  # takes turns with it
    again = finished(job)
    assert finished(beside).text == run.text
    edits = [gl.watch.Edit(layer, channels, positions, **options) for layer in (0, 2)]
    ids = [piece.id for piece in run.pieces[: run.answer_begin]]
    ids += [piece.id for piece in answer_of(again)]
    with gl.watch.edit(model, *edits):
        logits = model(mx.array([ids]))[0, run.answer_begin - 1 : -1]
    assert likeliest(again) == pytest.approx(mx.softmax(logits, -1).max(-1).tolist(), rel=1e-4)
    assert not run.counterfactuals


def test_losses_are_those_of_the_library(engine, finished, run, model):
    words = words_of(run)
    target = next(n for n, word in enumerate(words) if word.text == "split" and word.message == 1)
    job, work, name, units = ask_dependence(engine, run, words, target)
    finished(job)
    assert (name, units) == ("words", [range(n, n + 1) for n in range(target)])
    ids = [piece.id for piece in run.pieces[: words[target].stop]]
    left_out = [range(word.first, word.stop) for word in words[:target]]
    expected = gl.watch.depends(model, ids, left_out)[:, words[target].first - 1 :].sum(1)
    assert work.result == pytest.approx(expected.tolist(), abs=1e-4)
    assert {words[n].text for n in np.argsort(work.result)[-2:]} == {"split", "."}


def test_longer_texts_are_left_out_in_larger_parts(engine, finished, monkeypatch):
    run = finished(engine.submit("demo", LONGER, Sampling(0), 8))
    words = words_of(run)
    last = len(words) - 1
    for expected in ("words", "sentences", "messages"):
        job, work, name, units = ask_dependence(engine, run, words, last)
        finished(job)
        assert name == expected
        assert [n for unit in units for n in unit] == list(range(last))
        assert len(work.result) == len(units)
        assert np.isfinite(work.result).all()
        cost = sum(words[last].stop - words[unit[0]].first for unit in units)
        monkeypatch.setattr(probes, "MAX_READ", cost - 1)
    line = refusal(ask_dependence, engine, run, words, last)
    assert line == "words: the text before this one is too long"


def test_layers_and_channels_are_asked_about_a_token(engine, finished, run, model):
    token = run.answer_begin + [piece.text for piece in answer_of(run)].index("split")
    ids = [piece.id for piece in run.pieces[: token + 1]]
    job, work = ask_channels(engine, run, 1, token)
    finished(job)
    np.testing.assert_allclose(work.result, gl.watch.channels(model, ids, 1)[:, -1], atol=1e-4)
    job, work = ask_lens(engine, run, token)
    finished(job)
    guesses, appears = work.result
    best = gl.watch.lens(model, ids[:-1], top=1)[:, -1, 0]
    chances = mx.softmax(mx.array(gl.watch.lens(model, ids[:-1])[:, -1]), -1).max(-1)
    np.testing.assert_allclose([chance for _, chance in guesses], chances, atol=1e-5)
    assert best[appears:].tolist() == [ids[-1]] * (len(best) - appears)
    assert guesses[-1][0] == "split"
    assert work.seconds > 0


def test_an_answer_given_again_twice_is_kept_once_a_stopped_one_not(engine, finished, until, run):
    first, second = words_of(run)[:2]
    job = answer_again(engine, run, [first])
    job.cancel()
    until(job)
    assert run.counterfactuals == []
    for left_out in (first, second, first):
        finished(answer_again(engine, run, [left_out]))
    assert [each.left_out[0] for each in run.counterfactuals] == [first.first, second.first]


def test_work_that_takes_too_long_is_given_up(engine, until, run, monkeypatch):
    monkeypatch.setattr(probes, "MAX_SECONDS", 0)
    job, *_ = ask_dependence(engine, run, words_of(run), 3)
    until(job)
    assert job.error.startswith("model: needs more than 0 seconds for this; ")


def test_a_model_with_attention_is_refused_in_one_line(make_engine, make_chat, until, tmp_path):
    save_recurrent_model(tmp_path / "falcon", "falcon_h1", dtype=mx.bfloat16)
    engine = make_engine(tmp_path)
    run = make_chat(engine, "c", "falcon").say("one two three")
    words = words_of(run)
    for job in (answer_again(engine, run, words[:1]), ask_dependence(engine, run, words, 2)[0]):
        until(job)
        assert job.error.startswith("model: layer 0 is not recurrent, so no step can be left out")
        assert "\n" not in job.error
    assert run.counterfactuals == []
