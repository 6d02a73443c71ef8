"""Texts that continue the state files of `gateloop read`."""

import base64

import mlx.core as mx
import pytest
from helpers.errors import refusal
from helpers.models import chat_tokenizer, save_tiny_model, tiny_model
from mlx_gateloop.app.generation.counterfactual import CounterfactualRequest
from mlx_gateloop.app.generation.probes import Probe, ask_dependence, ask_lens
from mlx_gateloop.app.generation.state_files import given_file
from mlx_gateloop.app.generation.words import Words
from mlx_gateloop.app.server.isolation import Bounds

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling, stream

GREEDY = Sampling(temperature=0)


def save_state(path, name, text, tuned=False):
    model, tokenizer = gl.load(path)
    state = gl.State(model.make_cache())
    state.read(model, tokenizer.encode(text))
    state = gl.State(state.cache) if tuned else state
    gl.write_state(path.parent / f"{name}.state", state, model, tokenizer)


@pytest.fixture
def folder(tmp_path):
    """Two models, and a state of each."""
    for seed, name in enumerate(("one", "two")):
        save_state(save_tiny_model(tmp_path / name, seed), name, "a book " * 40)
    return tmp_path


def dropped(path, size=None):
    data = path.read_bytes()
    return [path.name, size or len(data), base64.b64encode(data).decode()]


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_text_continues_a_state(folder, make_engine, finished, is_dropped):
    bounds = Bounds() if is_dropped else None  # a tokenizer in another process, and in this one
    engine = make_engine(folder, bounds)
    file = given_file(dropped(folder / "one.state") if is_dropped else "one.state", engine.models)
    check = Probe(file.tokens_read)
    finished(engine.enqueue("one", check))
    assert check.result == 280
    model, tokenizer = gl.load(folder / "one")
    for _ in range(2):  # the file is read again
        state = gl.read_state(folder / "one.state", model, tokenizer)
        expected = "".join(stream(model, tokenizer, "naïve", GREEDY, max_tokens=20, state=state))
        run = finished(engine.submit("one", "naïve", GREEDY, 20, state=file))
        assert run.text == expected
        assert run.stats.prompt_tokens == 280 + run.stats.prompt_tokens_read == 286
        assert run.trace.tokens == len(run.pieces) == 26
        assert 0 < run.trace.left(run.starting) < 1  # its last tokens are in `earlier`


def test_a_conversation_and_its_branches_begin_from_a_tuned_state(tmp_path, make_engine, finished):
    """Of a model that writes letters, which has two tuned states."""
    tokenizer = chat_tokenizer()
    model = tiny_model(0, vocab_size=len(tokenizer), longest_half_life=1000)
    model.lm_head.bias = mx.zeros(len(tokenizer)).at[mx.array(tokenizer.encode("abcdefgh"))].add(50)
    gl.save(model, tokenizer, tmp_path / "speaker")
    for name in ("calm", "wild"):
        save_state(tmp_path / "speaker", name, name * 9, tuned=True)
    engine = make_engine(tmp_path)
    calm, wild = (given_file(f"{name}.state", engine.models) for name in ("calm", "wild"))
    model, tokenizer = gl.load(tmp_path / "speaker")

    def answer(messages, state, conversation="c"):
        options = Sampling(temperature=0), 12, True, conversation
        return finished(engine.submit("speaker", messages, *options, state=state))

    def expected(messages, name):
        state = gl.read_state(tmp_path / f"{name}.state", model, tokenizer)
        return "".join(stream(model, tokenizer, messages, GREEDY, max_tokens=12, state=state))

    one = [{"role": "user", "content": "one"}]
    first = answer(one, calm)
    assert first.text == expected(one, "calm") != answer(one, None).text
    two = [*one, {"role": "assistant", "content": first.text}, {"role": "user", "content": "two"}]
    second, edited = answer(two, calm), [{"role": "user", "content": "another"}]
    assert second.text == expected(two, "calm") == answer(two, calm, None).text
    assert second.stats.prompt_tokens_read < second.stats.prompt_tokens
    assert 1 > first.trace.left(first.starting) > second.trace.left(second.starting) > 0
    assert answer(one, calm).text == first.text
    assert answer(edited, calm).text == expected(edited, "calm")
    other = answer(two, wild)  # nothing of another state is used
    assert other.stats.prompt_tokens_read == other.stats.prompt_tokens
    assert other.text == expected(two, "wild")
    settings = second.sampling, second.max_tokens, False, None
    again = CounterfactualRequest("", *settings, state=second.state, original=second)
    assert finished(engine.enqueue("speaker", again)).text == second.text
    words = Words().update(second)
    assert "began from a state" in refusal(ask_lens, engine, second, 3)
    assert "began from a state" in refusal(ask_dependence, engine, second, words, 1)


def test_what_is_not_a_state_of_the_model_is_refused_in_one_line(folder, make_engine, until):
    engine, damaged = make_engine(folder), folder / "one.state"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for path in (damaged, folder / "two.state"):
        for given in (path.name, dropped(path, 1)):
            until(run := engine.enqueue("one", Probe(given_file(given, engine.models).tokens_read)))
            assert run.error.startswith(f"{path.stem}.state: ")
            assert "\n" not in run.error
            assert str(folder) not in run.error


@pytest.mark.parametrize(("given", "message"), [
    ("three.state", "state: there is no such state file; choose another"),
    ("../one.state", "state: there is no such"), ({"name": "x"}, "state: there is no such"),
    (["x.state", 1, None], "state: there is no such"),
    (["x.state", 180_001, ""], "x.state: more than 180,000 bytes; put the file into"),
    (["/a/x.state", 1, "x" * 400_000], "x.state: more than 180,000 bytes"),
    (["x.state", 1, "§"], "x.state: not a state of gateloop read"),
])  # fmt: skip
def test_what_a_page_sends_is_checked(folder, make_engine, given, message):
    assert message in refusal(given_file, given, make_engine(folder).models)


def test_a_link_out_of_the_folder_is_no_state_file(folder, make_engine, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.state"
    outside.write_bytes((folder / "one.state").read_bytes())
    (folder / "linked.state").symlink_to(outside)
    assert [*make_engine(folder).models.state_files()] == ["one.state", "two.state"]
