"""A conversation goes on from its state: exactly, reading only what is new."""

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mlx_gateloop as gl
from app.conversation import Boundary, Conversations
from app.conversation import load as load_file_of_conversation
from app.engine import Sampling
from mlx_gateloop.errors import InputError
from mlx_gateloop.trace import recording

MODEL = "tiny"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Chat:
    """What a page does: it sends all messages each time."""

    def __init__(self, engine, finished, conversation="c", model=MODEL):
        self.engine, self.finished = engine, finished
        self.conversation, self.model, self.messages = conversation, model, []

    def say(self, text, seed=0, **options):
        self.messages.append(user(text))
        return self.answer(seed, **options)

    def answer(self, seed=0, max_tokens=20, record=True):
        sampling = Sampling(1.0, seed=seed)
        run = self.finished(
            self.engine.submit(
                self.model, self.messages, sampling, max_tokens, record, self.conversation
            )
        )
        self.messages.append(assistant(run.text))
        return run

    def boundaries(self):
        pairs = tuple((m["role"], m["content"]) for m in self.messages)
        fingerprint = self.engine.models.fingerprint(self.model)
        return self.engine._conversations.path(self.conversation, fingerprint, pairs, None)


@pytest.fixture
def chat(engine, finished):
    return Chat(engine, finished)


@pytest.fixture
def model(models_folder):
    return gl.load(models_folder / MODEL)


def test_every_boundary_is_what_a_fresh_read_of_the_whole_gives(chat, model):
    runs = [chat.say(text, seed) for seed, text in enumerate(["hello", "and then?", "é" * 200])]
    found = chat.boundaries()
    assert [len(boundary.messages) for boundary in found] == [1, 2, 3, 4, 5, 6]
    for boundary in found:
        caches, recorder = recording(model[0])
        seen = boundary.ids[: len(boundary.ids) - boundary.unread]
        mx.eval(model[0](mx.array([seen]), caches), recorder.step())
        recorder.take()
        for cache, state in zip(caches, boundary.states, strict=True):
            assert state == pytest.approx(np.array(cache[0]), abs=1e-5)
        # the view of the last run goes back to the first token
        for layer in range(2):
            shown = runs[-1].trace.magnitude(layer, 0, len(seen))
            assert shown == pytest.approx(recorder.trace.magnitude(layer), abs=1e-5)
    pieces = [piece.id for piece in runs[-1].pieces]
    assert tuple(pieces) == found[-1].ids
    assert [piece.text for piece in runs[-1].pieces[: runs[1].begin + 1]] == [
        piece.text for piece in runs[1].pieces[: runs[1].begin + 1]
    ]


def test_the_end_of_a_turn_is_not_in_the_state(chat, engine, model):
    class Ending(type(engine.models)):
        def load(self, name):
            loaded = super().load(name)
            loaded.tokenizer._eos_token_ids = set(range(0, 256, 8))
            return loaded

    engine.models = Ending(engine.models.roots)
    runs = [chat.say("hello", seed, max_tokens=200) for seed in range(6)]
    lengths = [run.stats.tokens for run in runs]
    assert max(lengths) < 200
    assert 0 in lengths  # one had nothing to say
    assert lengths[-1] > 0
    last = chat.boundaries()[-1]
    caches = model[0].make_cache()
    mx.eval(model[0](mx.array([last.ids]), caches))
    for cache, state in zip(caches, last.states, strict=True):
        assert state == pytest.approx(np.array(cache[0]), abs=1e-5)
    assert runs[-1].trace.tokens == len(runs[-1].pieces) == len(last.ids)


def test_the_next_token_is_what_a_fresh_read_of_the_whole_makes_likely(chat, model):
    chat.say("hello")
    run = chat.say("again")
    ids = chat.boundaries()[-2].ids
    logits = model[0](mx.array([ids]))[0, -1]
    likely = sorted(mx.softmax(logits).tolist(), reverse=True)[:8]
    first = next(piece for piece in run.pieces[run.begin :] if piece.kind == "answer")
    assert [chance for _, chance in first.candidates] == pytest.approx(likely, rel=1e-4)


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


def test_retry_undo_and_edit_go_back_to_a_state(chat):
    chat.say("one", seed=1)
    first = chat.say("two", seed=2)
    chat.messages.pop()  # retry
    again = chat.answer(seed=2)
    assert again.stats.prompt_tokens_read == 1
    assert again.pieces == first.pieces
    assert (again.trace.columns(0) == first.trace.columns(0)).all()
    chat.messages.pop()
    other = chat.answer(seed=3)
    assert other.text != first.text
    assert (first.trace.columns(0) == again.trace.columns(0)).all()  # not written over
    del chat.messages[2:]  # undo
    two = chat.say("two", seed=2)
    assert two.stats.prompt_tokens_read == 1
    assert two.text == first.text
    chat.messages[2:] = []  # edit
    edited = chat.say("another two", seed=2)
    assert edited.stats.prompt_tokens_read == first.stats.prompt_tokens_read + len("another ")
    chat.messages[:] = []
    zero = chat.say("zero").stats
    assert zero.prompt_tokens_read == zero.prompt_tokens  # nothing in common


def test_a_stopped_answer_is_gone_on_from(chat, engine, finished):
    chat.messages.append(user("hello"))
    run = engine.submit(MODEL, chat.messages, Sampling(1.0, seed=1), 1000, True, "c")
    run.wait(60, 10)
    run.cancel()
    chat.messages.append(assistant(finished(run).text))
    after = chat.say("go on")
    assert after.begin == len(run.pieces) > 0
    assert after.stats.prompt_tokens == len(run.pieces) + after.stats.prompt_tokens_read


def test_conversations_and_models_do_not_see_each_other(chat, engine, finished):
    chat.say("hello")
    again = Chat(engine, finished, "another").say("hello")
    assert again.stats.prompt_tokens_read == again.stats.prompt_tokens > 1
    again = Chat(engine, finished, "c", "fixed").say("hello")
    assert again.stats.prompt_tokens_read == again.stats.prompt_tokens
    none = Chat(engine, finished, None)
    none.say("hello")
    assert none.say("more").stats.prompt_tokens_read > 40
    engine.forget("c")
    assert not chat.boundaries()


def test_the_view_begins_again_where_nothing_was_recorded(chat):
    chat.say("hello", record=False)
    run = chat.say("more")
    assert run.begin == 0
    assert run.trace.tokens == len(run.pieces) == run.stats.prompt_tokens_read + run.stats.tokens


def test_what_is_kept_is_bounded():
    kept = Conversations(conversations=2, boundaries=3)

    def messages(n):
        return tuple(("user", str(i)) for i in range(n + 1))

    for name in ("a", "b", "c"):
        for n in range(5):
            kept.put(name, "f", Boundary(messages(n), "", (1,), 1, ()))
    assert [len(kept.path(name, "f", messages(4), "")) for name in ("a", "b", "c")] == [0, 3, 3]
    assert [len(b.messages) for b in kept.path("c", "f", messages(4), "")] == [3, 4, 5]
    assert kept.path("c", "g", messages(4), "") == []


def test_a_saved_conversation_goes_on_elsewhere(chat, make_engine, finished, tmp_path):
    chat.say("hello")
    chat.say("more", seed=4)
    chat.engine.save_conversation("c", MODEL, chat.messages, tmp_path / "chat.safetensors")
    other = make_engine()
    name, model, messages = other.load_conversation(tmp_path / "chat.safetensors")
    assert (model, messages) == (MODEL, chat.messages)
    assert name != "c"
    loaded = Chat(other, finished, name)
    loaded.messages = messages
    here, there = chat.say("go on", seed=5), loaded.say("go on", seed=5)
    assert here.text == there.text
    assert here.stats.prompt_tokens_read == there.stats.prompt_tokens_read
    assert there.begin == 0  # its view begins with the new message
    del loaded.messages[3:]
    assert loaded.answer(seed=4).stats.prompt_tokens_read == 1  # retry works there too
    assert (tmp_path / "chat.safetensors").stat().st_size < 20_000


def test_nothing_to_save_and_nowhere_to_save(chat, tmp_path):
    with pytest.raises(InputError, match="nothing of it is kept here"):
        chat.engine.save_conversation("c", MODEL, [user("x")], tmp_path / "chat")
    chat.say("hello")
    with pytest.raises(InputError, match=r"no/chat: cannot be written"):
        chat.engine.save_conversation("c", MODEL, chat.messages, tmp_path / "no" / "chat")


def test_a_file_of_another_model_is_refused(chat, engine, finished, tmp_path, models_folder):
    import shutil

    folder = tmp_path / "models"
    shutil.copytree(models_folder, folder)
    chat.say("hello")
    engine.save_conversation("c", MODEL, chat.messages, tmp_path / "chat")
    shutil.copy(folder / "fixed" / "model.safetensors", folder / "tiny" / "model.safetensors")
    engine.models = type(engine.models)([folder])
    with pytest.raises(InputError, match="made with another model than 'tiny' is now"):
        engine.load_conversation(tmp_path / "chat")


def change_header(**changes):
    def change(arrays, header):
        return arrays, {**header, **changes}

    return change


def change_array(name, value):
    return lambda arrays, header: ({**arrays, name: value}, header)


STATE = np.zeros((2, 1, 2, 16), np.float32)
MARK = {"messages": 1, "characters": 5, "tokens": 5, "unread": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_header(format="other"), "not a conversation: format"),
        (change_header(messages=[["user"]]), "damaged: a message is not role and text"),
        (change_header(messages="x"), "not a conversation: messages"),
        (change_header(more=1), "not a conversation: more"),
        (change_header(marks=[]), "not a conversation: marks"),
        (change_header(marks=[MARK | {"tokens": 999}] * 2), "damaged: a mark past the end"),
        (change_header(marks=[MARK | {"messages": 3}] * 2), "damaged: a mark past the end"),
        (change_header(marks=[MARK | {"unread": 0}] * 2), "damaged: a prompt's last token"),
        (change_header(marks=[MARK | {"tokens": 0}] * 2), "not a conversation: marks.0.tokens"),
        (change_header(model="../x"), "model: there is no '../x'"),
        (change_array("ids", np.array([-1] * 60)), "damaged: token ids"),
        (change_array("ids", np.array([10**6] * 60)), "damaged: token ids"),
        (change_array("ids", np.zeros((60, 1), np.int64)), "damaged: token ids"),
        (change_array("states.0", STATE * np.nan), "damaged: states.0 is not finite"),
        (change_array("states.0", STATE[:1]), "damaged: states.0"),
        (change_array("states.0", STATE[..., :8]), "damaged: its states are not of 'tiny'"),
        (change_array("states.2", STATE), "damaged: its states are not of 'tiny'"),
        (change_array("states.0", STATE.astype(np.float64)), "damaged: states.0"),
        (change_array("other", STATE), "damaged: unknown arrays"),
    ],
)
def test_damaged_and_forged_files_are_refused_in_one_line(chat, tmp_path, change, message):
    import json

    chat.say("hello")
    path = tmp_path / "chat"
    chat.engine.save_conversation("c", MODEL, chat.messages, path)
    header, _ = load_file_of_conversation(path)
    arrays, header = change(load_file(path), header.model_dump())
    save_file(arrays, path, {"conversation": json.dumps(header)})
    with pytest.raises(InputError) as error:
        chat.engine.load_conversation(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff" * 9, b"PK\x03\x04"])
def test_other_files_are_refused(engine, tmp_path, content):
    (tmp_path / "chat").write_bytes(content)
    with pytest.raises(InputError, match="not a readable conversation file"):
        engine.load_conversation(tmp_path / "chat")
    with pytest.raises(InputError, match="not a readable conversation file"):
        engine.load_conversation(tmp_path)
    with pytest.raises(InputError, match="not a readable conversation file"):
        engine.load_conversation(tmp_path / "missing")
