"""Models of mlx-lm's types: a chat goes on from its state, and is recorded as any generation is."""

import base64
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from helpers.cases import first
from helpers.models import save_tiny_model
from helpers.recurrent import save_recurrent_model
from mlx_gateloop.app.api import _transitions
from mlx_gateloop.app.conversations import file
from mlx_gateloop.app.generation.caches import Caches
from mlx_gateloop.app.generation.chat_tokenizer import ChatTokenizer
from mlx_gateloop.app.generation.decoder import NOT_TRIMMABLE, TOO_LARGE
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.prefix_cache import START
from mlx_gateloop.app.page.status import describe_model
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import mlx_gateloop as gl
from mlx_gateloop.io.files import checksum
from mlx_gateloop.io.models import load_weights

WINDOW = 100  # tokens; a message and its answer have fewer
SAVED = {
    "falcon_h1": {"dtype": mx.bfloat16}, "qwen3_5": {},
    "recurrent_gemma": {"attention_window_size": WINDOW}, "llama": {},
    "gla": {"dtype": mx.bfloat16},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    for name, options in SAVED.items():
        save_recurrent_model(folder / name, name, **options)
    save_tiny_model(folder / "tiny", chat=True, hidden_size=16, intermediate_size=32)
    save_tiny_model(folder / "softmax", chat=True, mixer="softmax", num_heads=2)
    return folder


@pytest.fixture
def other_chat(folder, make_engine, make_chat):
    return lambda name, **limits: make_chat(make_engine(folder, **limits), "c", name)


def fresh(chat, ids):
    """Caches and logits of a model that has read these tokens at once."""
    model = load_weights(chat.engine.models.roots[0] / chat.model)
    caches = Caches(model)
    logits = model(mx.array([ids]), cache=caches.all)[0, -1].astype(mx.float32)
    mx.eval(logits, caches.arrays)
    return caches, logits


def whole(kept):
    array = np.concatenate([*kept], 2) if isinstance(kept, tuple) else kept
    if array.dtype == np.uint16:
        return np.array(mx.array(array).view(mx.bfloat16).astype(mx.float32))
    return array


def is_fresh(chat, prefix, tolerance=1e-4):
    expected, _ = fresh(chat, prefix.ids[: len(prefix.ids) - prefix.unread])
    caches = Caches(load_weights(chat.engine.models.roots[0] / chat.model))
    caches.restore(prefix)
    for ours, theirs in zip(sum(caches.snapshot(), ()), sum(expected.snapshot(), ()), strict=True):
        assert whole(ours) == pytest.approx(whole(theirs), abs=tolerance)


def likely(chat, ids):
    return sorted(mx.softmax(fresh(chat, ids)[1]).tolist(), reverse=True)[:8]


def chances(piece):
    return [chance for _, chance in piece.candidates]


@pytest.mark.parametrize(
    "name", first(3, ["falcon_h1", "llama", "tiny", "qwen3_5", "gla", "softmax"])
)
def test_every_prefix_is_what_a_fresh_read_of_the_whole_gives(other_chat, name):
    chat = other_chat(name)
    runs = [chat.say("hello", 0), chat.say("and then?", 1)]
    found = chat.prefix_states()
    assert [len(prefix.messages) for prefix in found] == [1, 2, 3, 4]
    for prefix in found:
        is_fresh(chat, prefix, 0.05 if name == "falcon_h1" else 1e-4)  # bfloat16
    first = runs[1].pieces[runs[1].answer_begin]
    assert chances(first) == pytest.approx(likely(chat, found[2].ids), abs=0.01)


@pytest.mark.parametrize("name", ["falcon_h1", "llama", "tiny"])
def test_retry_undo_edit_and_a_saved_chat_read_only_what_is_new(
    other_chat, make_engine, make_chat, folder, tmp_path, name
):
    chat = other_chat(name)
    chat.say("one", seed=1)
    first = chat.say("two", seed=2)
    assert first.stats.prompt_tokens_read < 30 < first.stats.prompt_tokens
    chat.messages.pop()  # retry
    again = chat.answer(seed=2)
    assert again.stats.prompt_tokens_read == 1
    assert again.text == first.text
    chat.messages.pop()
    if first.trace.layers:  # else the view has nothing of the beginning
        assert again.pieces == first.pieces
    shown = [first.trace.columns(layer) for layer in range(first.trace.layers)]
    assert chat.answer(seed=3).text != first.text
    for trace in (first.trace, again.trace):  # not written over
        assert all((trace.columns(layer) == old).all() for layer, old in enumerate(shown))
    del chat.messages[2:]  # undo
    edited = chat.say("othertwo", seed=2)
    assert edited.stats.prompt_tokens_read == first.stats.prompt_tokens_read + len("other")
    engine, path = chat.engine, tmp_path / "chat"
    file.save(path, "c", name, chat.messages, engine.models, engine.prefix_cache)
    assert file.read(path)[1].messages == chat.prefix_states()[-1].messages
    other = make_engine(folder)
    id, model, messages, branches = file.load(path, other.models, other.prefix_cache)
    assert (model, messages, branches) == (name, chat.messages, [])
    there = make_chat(other, id, name)
    there.messages = messages
    assert id != "c"
    here, after = chat.say("go on", seed=5), there.say("go on", seed=5, record=False)
    assert here.text == after.text
    assert here.stats.prompt_tokens_read == after.stats.prompt_tokens_read < 80


@pytest.mark.parametrize("name", ["qwen3_5", "tiny"])
def test_the_trace_is_the_recorders(other_chat, name):
    chat = other_chat(name)
    chat.say("one")
    run = chat.say("two", seed=3)
    model = load_weights(chat.engine.models.roots[0] / name)
    with gl.watch.recording(model) as recorder:
        model(mx.array([[piece.id for piece in run.pieces]]), cache=Caches(model).all)
    assert run.trace.tokens == len(run.pieces) == recorder.trace.tokens
    assert run.trace.names == recorder.trace.names
    assert run.trace.channels == recorder.trace.channels
    assert run.unwatched == recorder.unwatched
    sent = _transitions(run.trace)  # to a program
    assert sent["shapes"] == [[run.trace.tokens, 2, channels] for channels in run.trace.channels]
    columns = b"".join(run.trace.columns(layer).tobytes() for layer in range(run.trace.layers))
    assert base64.b64decode(sent["columns"]) == columns
    for layer in range(run.trace.layers):
        shown = run.trace.magnitude(layer)
        assert shown == pytest.approx(recorder.trace.magnitude(layer), abs=1e-4)


@pytest.mark.parametrize("name", ["tiny", "qwen3_5", "llama"])
def test_the_end_of_a_turn_is_not_in_the_state(other_chat, name, monkeypatch):
    chat, stops = other_chat(name), [*range(300)]
    monkeypatch.setattr(ChatTokenizer, "special_ids", lambda _: (None, stops, []))
    assert chat.say("hello").stats.tokens == 0
    stops[:] = range(0, 256, 8)
    runs = [chat.say("hello", seed, max_tokens=100) for seed in range(3)]
    run = next(run for run in runs if 0 < run.stats.tokens < 100)
    del chat.messages[2 * runs.index(run) + 4 :]
    is_fresh(chat, chat.prefix_states()[-1])
    assert run.trace.tokens == (0 if name == "llama" else len(run.pieces))


def test_a_full_attention_window_is_said_and_what_follows_is_read_again(other_chat):
    chat = other_chat("recurrent_gemma")
    short = chat.say("a", max_tokens=5)
    assert (short.stats.note, len(chat.prefix_states())) == ("", 2)
    kept = short.stats.prompt_tokens + short.stats.tokens
    long = chat.say("x" * WINDOW)
    assert long.stats.prompt_tokens > WINDOW
    assert long.stats.note == NOT_TRIMMABLE
    assert len(chat.prefix_states()) == 2
    after = chat.say("again", seed=4)
    assert after.stats.prompt_tokens - after.stats.prompt_tokens_read == kept
    assert after.trace.tokens == len(after.pieces) == after.stats.prompt_tokens + after.stats.tokens
    at = after.answer_begin
    expected = likely(chat, [piece.id for piece in after.pieces[:at]])
    assert chances(after.pieces[at]) == pytest.approx(expected, abs=0.01)
    del chat.messages[2:]  # undo, to where the window was not full
    assert chat.say("b").stats.prompt_tokens_read < 80


def test_a_state_that_is_too_large_drops_no_others(other_chat):
    chat = other_chat("llama", prefix_bytes=60_000)
    chat.say("hello")
    first, chat.conversation, chat.messages = chat.messages, "other", []
    assert chat.say("x" * 400).stats.note == TOO_LARGE
    assert chat.prefix_states() == []
    chat.conversation, chat.messages = "c", first
    assert len(chat.prefix_states()) == 2


def test_attention_alone_keeps_keys_and_values_once_and_has_nothing_to_see(other_chat, tmp_path):
    chat = other_chat("llama")
    for text in ("one", "two", "three"):
        run = chat.say(text)
    assert run.stats.tokens > run.trace.layers == run.stats.state_bytes == 0
    assert run.stats.attention_bytes > 0
    assert _transitions(run.trace)["shapes"] == []  # for a program
    assert all("attention keeps tokens" in reason for reason in run.unwatched.values())
    assert len(run.unwatched) == 2
    found = chat.prefix_states()
    size = sum(sum(p.nbytes for p in parts) for parts in found[-1].keys_values)
    for prefix, later in pairwise(found):
        for parts, more in zip(prefix.keys_values, later.keys_values, strict=True):
            assert all(one is other for one, other in zip(parts, more, strict=False))
    cache = chat.engine.prefix_cache
    assert cache._bytes == size + sum(prefix.nbytes for prefix in found)
    path = tmp_path / "chat"
    file.save(path, "c", "llama", chat.messages, chat.engine.models, cache, 5000)
    assert file.read(path)[1] is START  # the state is too large
    cache.forget("c")
    assert (cache._bytes, len(cache._uses)) == (0, 0)


def test_states_that_do_not_fit_are_not_gone_on_from(other_chat, tmp_path):
    chat = other_chat("qwen3_5")
    chat.say("hello")
    engine, path = chat.engine, tmp_path / "chat"
    file.save(path, "c", "qwen3_5", chat.messages, engine.models, engine.prefix_cache)
    arrays = load_file(path)
    with safe_open(path, "numpy") as opened:
        text = opened.metadata()["conversation"]
    keys = arrays["keys_values.0"]
    changes = [
        {"states.0": arrays["states.0"][..., :2]}, {"keys_values.0": keys[..., :2]},
        {"ids": arrays["ids"] + 250}, {"keys_values.0": keys[:, :, :9]},
        {f"keys_values.{i}": keys for i in range(2, 4)},
    ]  # fmt: skip
    for change in changes:
        held = {name: np.ascontiguousarray(array) for name, array in (arrays | change).items()}
        sums = {"sha256": checksum(sorted(held.items()), text)}
        save_file(held, path, {"conversation": text} | sums)
        id, _, messages, _ = file.load(path, engine.models, engine.prefix_cache)
        chat.conversation, chat.messages = id, messages
        stats = chat.say("more").stats
        assert stats.prompt_tokens_read == stats.prompt_tokens


def test_heads_are_described(folder):
    assert describe_model(Models([folder]).info("gla")) == "2 layers of 4 heads, gla"
