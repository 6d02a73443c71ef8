"""A folder of conversations: nothing is lost, written over or read from elsewhere."""

import os
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from helpers.errors import refusal
from mlx_gateloop.app.conversations import folder as folder_module
from mlx_gateloop.app.conversations.folder import ConversationFolder, title

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "some" / "where"


def make_saved(engine, path, **limits):
    return ConversationFolder(path, engine.models, engine.prefix_cache, **limits)


@pytest.fixture
def saved(engine, folder):
    return make_saved(engine, folder)


def save(saved, name, messages=CHAT, model="tiny", version=0, branches=()):
    return saved.keep(name, version, "c", model, messages, branches)


def test_keep_list_and_open(saved, folder):
    assert saved.names() == []
    for age, name in enumerate(("first", "zwei é.2")):
        save(saved, name, branches=[CHAT[:1]])
        os.utime(folder / f"{name}.safetensors", (age, age))
    assert saved.names() == ["zwei é.2", "first"]
    assert saved.open("first")[1:4] == ("tiny", CHAT, [CHAT[:1]])


def test_a_conversation_is_found_by_its_title_and_its_words(saved):
    save(saved, "About lists", [{"role": "user", "content": 'Häuser, "quoted"'}])
    save(saved, "Other")
    found = [saved.names(text) for text in ("LISTS", "häuser", "hello", "fingerprint")]
    assert found == [["About lists"], ["About lists"], ["Other"], []]
    assert len(saved.names(" ")) == 2
    assert all(save(saved, "\U00020000" * 47)[0] in saved.names() for _ in "12")


def test_what_another_page_has_written_is_never_written_over(saved):
    with ThreadPoolExecutor(8) as pool:
        kept = [*pool.map(lambda n: save(saved, "mine", [dict(CHAT[0], content=n)]), "01234567")]
    names = {name for name, _ in kept}
    assert names == {"mine", *(f"mine {n}" for n in range(2, 9))} == {*saved.names()}
    assert sorted(saved.open(name)[2][0]["content"] for name in names) == sorted("01234567")


def test_rename_delete_and_restore_lose_nothing(saved, folder, monkeypatch):
    save(saved, "one")
    save(saved, "two", CHAT[:1])
    saved.rename("one", "uno")
    assert "already exists" in refusal(saved.rename, "uno", "two")
    assert "at most 60" in refusal(saved.rename, "uno", "../x")
    assert "'one' is not saved" in refusal(saved.rename, "one", "more")
    saved.delete("uno")
    assert saved.names() == ["two"]
    save(saved, "uno", CHAT[:1])
    assert saved.restore("uno") == "uno 2"
    assert saved.open("uno 2")[2] == CHAT
    assert "no longer" in refusal(saved.restore, "uno")
    saved.delete("uno")
    saved.rename("uno 2", "uno")
    assert saved.delete("uno") == "uno 2"
    monkeypatch.setattr(folder_module, "KEPT_DELETED", 1)
    os.utime(folder / "deleted" / "uno.safetensors", (2**32, 2**32))  # the clock went back
    saved.delete("two")
    assert "no longer" in refusal(saved.restore, "uno")
    assert saved.restore("two") == "two"


@pytest.mark.parametrize(("text", "name"), [
    ("What does `str.split` do?", "What does str.split do"), ("  ../../etc/passwd", "etc passwd"),
    ("…", "Conversation"), ("हिन्दी में, cafe\u0301!", "हिन्दी में cafe\u0301"),  # marks on letters
    ("word " * 40, ("word " * 10)[:48].strip()),
])  # fmt: skip
def test_a_title_comes_from_the_first_message(text, name):
    assert title([{"role": "system", "content": "x"}, {"role": "user", "content": text}]) == name


def test_a_name_is_no_path(saved, folder):
    wrong = ["", "../x", "a/b", "/etc/x", ".hidden", "a\n", "a\0b", "\u0301a", "a\u202eb", "x" * 61]
    wrong += ["\U00020000" * 60, None, 5, ["a"]]
    for name in wrong:
        assert "A title has at most" in refusal(save, saved, name)
        assert "is not saved: another tab" in refusal(saved.open, name)
    assert not [*folder.glob("*.safetensors")]


def test_files_and_bytes_are_limited(engine, folder):
    few = make_saved(engine, folder, max_files=2)
    save(few, "a")
    _, version = save(few, "b")
    assert "2 conversations are saved; delete some" in refusal(save, few, "c")
    save(few, "b", version=version)  # replaces itself
    size = (folder / "a.safetensors").stat().st_size
    small = make_saved(engine, folder, max_bytes=3 * size)
    none = make_saved(engine, folder, max_bytes=size)
    save(small, "c")
    assert "delete saved conversations" in refusal(save, small, "d")
    assert ", 0.0 MB are left" in refusal(save, none, "d")
    assert sorted(none.names()) == ["a", "b", "c"]


def test_links_do_not_lead_out_of_the_folder(saved, folder, tmp_path):
    save(saved, "inside")
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes((folder / "inside.safetensors").read_bytes())
    new, itself, inside = tmp_path / "new", folder / "itself", folder / "inside"
    links = {"out": outside, "dangling": new, "itself": itself, "within": inside}
    for name, target in links.items():
        (folder / f"{name}.safetensors").symlink_to(target.with_suffix(".safetensors"))
    (folder / "folder.safetensors").mkdir()
    assert sorted(saved.names()) == ["inside", "within"]
    for name in ("out", "dangling", "itself", "folder"):
        assert "is not saved: another tab" in refusal(saved.open, name)
        assert save(saved, name)[0] == f"{name} 2"  # beside the link
    assert not (tmp_path / "new.safetensors").exists()


def test_what_cannot_be_saved_is_one_line(saved, engine, tmp_path, monkeypatch):
    assert "model: there is no 'other'" in refusal(save, saved, "x", model="other")
    (tmp_path / "file").touch()
    assert "a file; give a folder" in refusal(make_saved, engine, tmp_path / "file")
    file = make_saved(engine, tmp_path / "file" / "below")
    assert file.names() == saved.names() == []
    assert "below: cannot be written: " in refusal(save, file, "x")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    homeless = make_saved(engine, "~/.gateloop/conversations")
    assert homeless.names() == []
    assert "--conversations DIR" in refusal(save, homeless, "x")
