"""A folder of conversations: nothing is lost, written over or read from elsewhere."""

import os
import threading

import pytest
from mlx_gateloop.app.conversations.folder import ConversationFolder

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "some" / "where"


@pytest.fixture
def saved(folder, engine):
    return ConversationFolder(folder, engine.models, engine.prefix_cache)


def refused(work, *arguments):
    with pytest.raises(InputError) as error:
        work(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_save_list_and_open(saved, folder, engine, finished):
    assert saved.names() == []
    run = finished(engine.submit("tiny", CHAT[:1], Sampling(0), 5, True, "c"))
    messages = [CHAT[0], {"role": "assistant", "content": run.text}]
    for age, name in enumerate(("first", "zwei é.2")):
        saved.save(name, "c", "tiny", messages)
        os.utime(folder / f"{name}.safetensors", (age, age))
    assert saved.names() == ["zwei é.2", "first"]
    session, model, found = saved.open("first")
    assert (model, found) == ("tiny", messages)
    found = [*found, {"role": "user", "content": "more"}]
    again = finished(engine.submit("tiny", found, Sampling(0), 5, False, session))
    assert again.stats.prompt_tokens_read < again.stats.prompt_tokens / 2


def test_a_name_that_is_taken_is_not_written_over(saved, folder):
    saved.save("mine", "c", "tiny", CHAT)
    before = (folder / "mine.safetensors").read_bytes()
    assert refused(saved.save, "mine", "c", "tiny", CHAT[:1]) == (
        "mine already exists; choose another name."
    )
    assert (folder / "mine.safetensors").read_bytes() == before


def test_of_many_that_take_a_name_at_once_one_gets_it(saved):
    results = []

    def save():
        try:
            saved.save("mine", "c", "tiny", CHAT)
            results.append(True)
        except InputError:
            results.append(False)

    threads = [threading.Thread(target=save) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "/etc/x", ".hidden", "a\n", "a\0b", "x" * 61, None, 5, ["a"]]
)
def test_a_name_is_no_path(saved, folder, name):
    assert "A name has at most" in refused(saved.save, name, "c", "tiny", CHAT)
    assert not folder.exists()
    assert "Choose a saved conversation" in refused(saved.open, name)


def test_files_and_bytes_are_limited(engine, folder):
    few = ConversationFolder(folder, engine.models, engine.prefix_cache, max_files=2)
    few.save("a", "c", "tiny", CHAT)
    few.save("b", "c", "tiny", CHAT)
    assert refused(few.save, "c", "c", "tiny", CHAT) == (
        f"2 conversations are saved; delete some in the folder {folder.name}"
    )
    size = (folder / "a.safetensors").stat().st_size
    small = ConversationFolder(folder, engine.models, engine.prefix_cache, max_bytes=3 * size)
    small.save("c", "c", "tiny", CHAT)
    assert "delete saved conversations" in refused(small.save, "d", "c", "tiny", CHAT)
    none = ConversationFolder(folder, engine.models, engine.prefix_cache, max_bytes=size)
    assert ", 0.0 MB are left" in refused(none.save, "d", "c", "tiny", CHAT)
    assert sorted(none.names()) == ["a", "b", "c"]
    assert len(list(folder.iterdir())) == 3


def test_links_do_not_lead_out_of_the_folder(saved, folder, tmp_path):
    saved.save("inside", "c", "tiny", CHAT)
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
        assert "Choose a saved conversation" in refused(saved.open, name)
        assert "already exists" in refused(saved.save, name, "c", "tiny", CHAT)
    assert not (tmp_path / "new.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_one_line(engine, tmp_path):
    file = tmp_path / "file"
    file.touch()
    saved = ConversationFolder(file, engine.models, engine.prefix_cache)
    assert saved.names() == []
    assert "file: cannot be written: " in refused(saved.save, "x", "c", "tiny", CHAT)


def test_there_has_to_be_something_to_save(saved):
    assert refused(saved.save, "x", "c", "tiny", []) == "There is nothing to save yet."
    assert "model: there is no 'other'" in refused(saved.save, "x", "c", "other", CHAT)
    assert saved.names() == []
