"""A conversation in a file goes on from its state; what is in the file is not trusted."""

import json
import shutil

import numpy as np
import pytest
from helpers.errors import refusal
from mlx_gateloop.app.conversations import file
from safetensors.numpy import load_file, save_file

from mlx_gateloop.io.files import checksum

MODEL = "tiny"


def save(chat, path, messages=None, **options):
    messages = chat.messages if messages is None else messages
    engine = chat.engine
    file.save(path, "c", MODEL, messages, engine.models, engine.prefix_cache, **options)


def load(engine, path):
    return file.load(path, engine.models, engine.prefix_cache)


def test_a_file_has_all_messages_whatever_states_are_kept(chat, make_engine, tmp_path, make_chat):
    for seed in range(3):
        chat.say("hello", seed)
    cached, cache = chat.prefix_states(), chat.engine.prefix_cache
    cache.forget("c")
    for prefix in cached[:4]:  # the last ones were evicted
        cache.put("c", chat.engine.models.fingerprint(MODEL), prefix)
    changed = [{"role": "system", "content": "be brief"}, *chat.messages]  # nothing of it is kept
    for name, messages, count in (("end", chat.messages, 4), ("system", changed, 0)):
        save(chat, tmp_path / name, messages)
        header, found = file.read(tmp_path / name)
        assert [prefix.messages for prefix in found] == [b.messages for b in cached[:count]]
        assert header.text == (found[-1].text if count else "")
        other = make_engine()
        id, _, loaded, _ = load(other, tmp_path / name)
        assert loaded == messages
        there = make_chat(other, id)
        there.messages = list(messages)
        stats = there.say("go on", seed=5, record=False).stats
        known = len(found[-1].ids) if count else 0
        assert stats.prompt_tokens - stats.prompt_tokens_read == known


def test_where_a_file_cannot_be_written_nothing_is_left(chat, tmp_path, monkeypatch):
    chat.say("hello")
    old = tmp_path / "old"
    old.write_text("old")

    def refused(path, **options):
        line = refusal(save, chat, path, **options)
        assert str(tmp_path) not in line
        assert [path.name for path in tmp_path.iterdir()] == ["old"]
        assert old.read_text() == "old"
        return line

    def full(*arguments):
        raise OSError(28, "No space left on device")

    assert "cannot be written: No such file or directory" in refused(tmp_path / "no" / "chat")
    assert "cannot be written: Not a directory" in refused(old / "chat")
    assert "needs 0.0 MB, 0.0 MB are left" in refused(old, max_bytes=100)
    assert "lone surrogate" in refused(old, messages=[{"role": "user", "content": "a\ud83d"}])
    for method in ("replace", "write_bytes"):
        with monkeypatch.context() as patch:
            patch.setattr(f"pathlib.Path.{method}", full)
            assert "cannot be written: No space left on device" in refused(old)


def test_a_file_of_another_model_is_refused(chat, engine, tmp_path, models_folder):
    folder = shutil.copytree(models_folder, tmp_path / "models")
    chat.say("hello")
    save(chat, tmp_path / "chat")
    shutil.copy(folder / "fixed" / "model.safetensors", folder / "tiny" / "model.safetensors")
    engine.models = type(engine.models)([folder])
    assert "the model 'tiny' has changed" in refusal(load, engine, tmp_path / "chat")


STATE = np.zeros((2, 1, 2, 16), np.float32)
MARK = {"messages": 1, "characters": 5, "tokens": 5, "unread": 1}
HEADERS = [
    ({"format": "other"}, "not a conversation: format"),
    ({"messages": [["tool", ""]]}, "not a conversation: messages.0"),
    ({"messages": []}, "not a conversation: messages"),
    ({"messages": [["user", ""]] * 402}, "messages: List should have at most 401 items"),
    ({"messages": [["user", "x" * 1_600_001]]}, "damaged: more than 1600000 characters"),
    ({"marks": [MARK] * 402}, "not a conversation: marks: List should have at most"),
    ({"more": 1}, "not a conversation: more"),
    ({"marks": []}, "damaged: states.0"),
    ({"marks": [MARK | {"tokens": 999}] * 2}, "damaged: a position past the end"),
    ({"marks": [MARK | {"messages": 3}] * 2}, "damaged: a position past the end"),
    ({"marks": [MARK | {"unread": 0}] * 2}, "damaged: a prompt's last token"),
    ({"marks": [MARK | {"tokens": 0}] * 2}, "not a conversation: marks.0.tokens"),
    ({"model": "../x"}, "model: there is no '../x'"),
]
ARRAYS = [
    ({"ids": np.array([-1] * 60)}, "damaged: token ids"),
    ({"ids": np.array([10**6] * 60)}, "damaged: token ids"),
    ({"states.0": STATE * np.nan}, "damaged: states.0 is not finite"),
    ({"states.0": STATE[:1]}, "damaged: states.0"),
    ({"states.0": STATE[..., :8]}, "damaged: its states do not fit 'tiny'"),
    ({"states.0": STATE.astype(np.float64)}, "damaged: states.0"),
    ({"other": STATE}, "damaged: unknown arrays"),
]


def test_damaged_and_forged_files_are_refused_in_one_line(chat, tmp_path):
    chat.say("hello")
    path = tmp_path / "chat"
    save(chat, path)
    original, held = file.read(path)[0].model_dump(), load_file(path)
    cases = [(header, {}, message) for header, message in HEADERS]
    cases += [({}, arrays, message) for arrays, message in ARRAYS]
    for header, arrays, message in cases:
        text, arrays = json.dumps(original | header), held | arrays
        sums = {"sha256": checksum(sorted(arrays.items()), text)}
        save_file(arrays, path, {"conversation": text} | sums)
        line = refusal(load, chat.engine, path)
        assert message in line
        assert str(tmp_path) not in line
    save_file(held | {"ids": held["ids"] + 1}, path, {"conversation": text} | sums)
    assert refusal(load, chat.engine, path) == "chat: damaged: wrong checksum"


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\x03\x04", None])
def test_other_files_are_refused(engine, tmp_path, content):
    if content is not None:
        (tmp_path / "chat").write_bytes(content)
    for path in (tmp_path / "chat", tmp_path):
        assert "not a readable conversation file" in refusal(load, engine, path)
