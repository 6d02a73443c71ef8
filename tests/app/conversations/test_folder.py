"""A folder of conversations: nothing is lost, written over or read from elsewhere."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.errors import refusal
from mlx_gateloop.app.conversations.folder import ConversationFolder

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "some" / "where"


@pytest.fixture
def make_saved(folder, engine):
    return lambda **limits: ConversationFolder(folder, engine.models, engine.prefix_cache, **limits)


@pytest.fixture
def saved(make_saved):
    return make_saved()


def save(saved, name, messages=CHAT, model="tiny"):
    saved.save(name, "c", model, messages)


def test_save_list_and_open(saved, folder, engine, finished):
    assert saved.names() == []
    run = finished(engine.submit("tiny", CHAT[:1], Sampling(0), 5, True, "c"))
    messages = [CHAT[0], {"role": "assistant", "content": run.text}]
    for age, name in enumerate(("first", "zwei é.2")):
        save(saved, name, messages)
        os.utime(folder / f"{name}.safetensors", (age, age))
    assert saved.names() == ["zwei é.2", "first"]
    session, model, found = saved.open("first")
    assert (model, found) == ("tiny", messages)
    found = [*found, {"role": "user", "content": "more"}]
    again = finished(engine.submit("tiny", found, Sampling(0), 5, False, session))
    assert again.stats.prompt_tokens_read < again.stats.prompt_tokens / 2


def test_of_many_that_take_a_name_at_once_one_gets_it_for_good(saved, folder):
    def attempt(_):
        try:
            save(saved, "mine")
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        results = [line for line in pool.map(attempt, range(8)) if line]
    assert results == ["mine already exists; choose another name."] * 7
    before = (folder / "mine.safetensors").read_bytes()
    refusal(save, saved, "mine", CHAT[:1])
    assert (folder / "mine.safetensors").read_bytes() == before


def test_a_name_is_no_path(saved, folder):
    wrong = ["", "../x", "a/b", "/etc/x", ".hidden", "a\n", "a\0b", "x" * 61, None, 5, ["a"]]
    for name in wrong:
        assert "A name has at most" in refusal(save, saved, name)
        assert "Choose a saved conversation" in refusal(saved.open, name)
    assert not folder.exists()


def test_files_and_bytes_are_limited(make_saved, folder):
    few = make_saved(max_files=2)
    save(few, "a")
    save(few, "b")
    assert refusal(save, few, "c") == (
        f"2 conversations are saved; delete some in the folder {folder.name}"
    )
    size = (folder / "a.safetensors").stat().st_size
    small, none = make_saved(max_bytes=3 * size), make_saved(max_bytes=size)
    save(small, "c")
    assert "delete saved conversations" in refusal(save, small, "d")
    assert ", 0.0 MB are left" in refusal(save, none, "d")
    assert sorted(none.names()) == ["a", "b", "c"]
    assert len(list(folder.iterdir())) == 3


def test_links_do_not_lead_out_of_the_folder(saved, folder, tmp_path):
    save(saved, "inside")
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes((folder / "inside.safetensors").read_bytes())
    for name, target in (
        ("out", outside),
        ("dangling", tmp_path / "new.safetensors"),
        ("itself", folder / "itself.safetensors"),
        ("within", folder / "inside.safetensors"),
    ):
        (folder / f"{name}.safetensors").symlink_to(target)
    (folder / "folder.safetensors").mkdir()
    assert sorted(saved.names()) == ["inside", "within"]
    for name in ("out", "dangling", "itself", "folder"):
        assert "Choose a saved conversation" in refusal(saved.open, name)
        assert "already exists" in refusal(save, saved, name)
    assert not (tmp_path / "new.safetensors").exists()


def test_what_cannot_be_saved_is_one_line(saved, engine, tmp_path, monkeypatch):
    assert refusal(save, saved, "x", []) == "There is nothing to save yet."
    assert "model: there is no 'other'" in refusal(save, saved, "x", model="other")
    (tmp_path / "file").touch()
    file = ConversationFolder(tmp_path / "file", engine.models, engine.prefix_cache)
    assert file.names() == saved.names() == []
    assert "file: cannot be written: " in refusal(save, file, "x")

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    homeless = ConversationFolder("~/.gateloop/conversations", engine.models, engine.prefix_cache)
    assert homeless.names() == []
    assert "--conversations DIR" in refusal(save, homeless, "x")
