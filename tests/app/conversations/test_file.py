"""A conversation in a file goes on from its state; what is in the file is not trusted."""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.errors import refusal
from mlx_gateloop.app.conversations import file
from mlx_gateloop.app.generation.prefix_cache import START
from safetensors.numpy import load_file, save_file

from mlx_gateloop.io.files import checksum

MODEL = "tiny"


def save(chat, path, messages=None, **options):
    models, cache = chat.engine.models, chat.engine.prefix_cache
    file.save(path, "c", MODEL, messages or chat.messages, models, cache, **options)


def load(engine, path):
    return file.load(path, engine.models, engine.prefix_cache)


def test_a_file_has_all_messages_whatever_state_is_kept(chat, tmp_path):
    for seed in range(3):
        chat.say("hello", seed)
    cached, cache = chat.prefix_states(), chat.engine.prefix_cache
    cache.forget("c")
    for prefix in cached[:4]:  # the last ones were evicted
        cache.put("c", chat.engine.models.fingerprint(MODEL), prefix)
    changed = [{"role": "system", "content": "be brief"}, *chat.messages]  # nothing of it is kept
    for name, messages, last in (("end", chat.messages, cached[3]), ("system", changed, START)):
        save(chat, tmp_path / name, messages)
        header, found = file.read(tmp_path / name)
        assert (found.messages, found.ids, header.text) == (last.messages, last.ids, last.text)
        assert load(chat.engine, tmp_path / name)[2] == messages


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

    assert "cannot be written: No such file or directory" in refused(tmp_path / "no" / "chat")
    assert "cannot be written: Not a directory" in refused(old / "chat")
    assert "needs 0.0 MB, 0.0 MB are left" in refused(old, max_bytes=100)
    assert "lone surrogate" in refused(old, messages=[{"role": "user", "content": "a\ud83d"}])
    for method in ("replace", "write_bytes"):
        with monkeypatch.context() as patch:
            full = OSError(28, "No space left on device")
            patch.setattr(f"pathlib.Path.{method}", Mock(side_effect=full))
            assert "cannot be written: No space left on device" in refused(old)


def test_a_file_of_a_changed_model_is_read_again(chat, engine, tmp_path, models_folder):
    folder = shutil.copytree(models_folder, tmp_path / "models")
    chat.say("hello")
    save(chat, tmp_path / "chat")
    shutil.copytree(folder / "fixed", folder / "tiny", dirs_exist_ok=True)
    engine.models = type(engine.models)([folder], trusted=folder)
    chat.conversation, _, chat.messages, _ = load(engine, tmp_path / "chat")
    stats = chat.say("more").stats
    assert stats.prompt_tokens_read == stats.prompt_tokens


STATE = np.zeros((1, 2, 16), np.float32)
HEADERS = [
    ({"format": "other"}, "not a conversation: format"),
    ({"messages": [["tool", ""]]}, "not a conversation: messages.0"),
    ({"messages": []}, "not a conversation: messages"),
    ({"messages": [["user", ""]] * 403}, "messages: List should have at most 402 items"),
    ({"branches": [[["user", "x"]]] * 21}, "branches: List should have at most 20 items"),
    ({"text": "x" * file.MAX_CHARACTERS}, "more than 33,600,000 characters"),
    ({"more": 1}, "not a conversation: more"),
    ({"read": 3}, "not a readable"),
    ({"read": -1}, "not a conversation: read"),
    ({"model": "../x"}, "model: there is no '../x'"),
]
ARRAYS = [{"ids": np.array([-1] * 60)}, {"states.7": STATE}, {"keys_values.0": STATE}]


def test_damaged_and_forged_files_are_refused_in_one_line(chat, tmp_path):
    chat.say("hello")
    path = tmp_path / "chat"
    save(chat, path)
    original, held = file.read(path)[0].model_dump(), load_file(path)
    cases = [(header, {}, message) for header, message in HEADERS]
    cases += [({}, arrays, "not a readable conversation file") for arrays in ARRAYS]
    for header, arrays, message in cases:
        text, arrays = json.dumps(original | header), held | arrays
        sums = {"sha256": checksum(sorted(arrays.items()), text)}
        save_file(arrays, path, {"conversation": text} | sums)
        line = refusal(load, chat.engine, path)
        assert message in line
        assert str(tmp_path) not in line
    save_file(held | {"ids": held["ids"] + 1}, path, {"conversation": text} | sums)
    assert refusal(load, chat.engine, path) == "chat: damaged: wrong checksum"


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\x03\x04"])
def test_other_files_are_refused(engine, tmp_path, content):
    (tmp_path / "chat").write_bytes(content)
    for path in (tmp_path / "chat", tmp_path, tmp_path / "none"):
        assert "not a readable conversation file" in refusal(load, engine, path)
