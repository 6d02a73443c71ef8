"""Conversations that are saved by themselves, exported and imported."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor, wait
from unittest.mock import Mock

import pytest
from helpers.errors import refusal
from mlx_gateloop.app.conversations import file
from mlx_gateloop.app.conversations.folder import ConversationFolder
from mlx_gateloop.app.page.keeper import MAX_IMPORT, Keeper, imported, without_system
from mlx_gateloop.app.page.sessions import Chat, Sessions

ASKED = [{"role": "user", "content": "What is *a*?"}]
TOLD = [*ASKED, {"role": "assistant", "content": "```python\nx\n```"}]


@pytest.fixture
def keeper(tmp_path, engine):
    folder = ConversationFolder(tmp_path / "kept", engine.models, engine.prefix_cache)
    return Keeper(folder, Sessions(4))


def keep(keeper, session, messages):
    keeper.sessions.begin(session, messages)
    keeper.save(keeper.sessions.chat(session), session, "tiny", "Be brief.")
    return keeper.sessions.chat(session)


def test_a_chat_is_saved_under_its_title_and_opened_with_its_branches(keeper):
    keep(keeper, "s", TOLD)
    assert keep(keeper, "s", ASKED).name == "What is a"
    session, model, system, messages = keeper.open("What is a")
    assert (model, system, messages) == ("tiny", "Be brief.", ASKED)
    keeper.sessions.turn(session, -1)
    assert [keeper.rename("s", " Signs ") for _ in range(2)] == [True, False]
    assert keeper.folder.names() == ["Signs"]
    assert keep(keeper, "s", [*ASKED, *TOLD[1:], *ASKED]).name == "Signs"
    assert keeper.folder.names() == ["Signs"]


@pytest.mark.parametrize(("change", "left"), [
    (lambda keeper, chat: keeper.rename("s", "Signs"), ["Signs"]), (Keeper.delete, []),
])  # fmt: skip
def test_an_answer_that_still_runs_leaves_no_second_file(keeper, monkeypatch, change, left):
    chat = keep(keeper, "s", ASKED)
    write = keeper.folder.keep
    with ThreadPoolExecutor(1) as pool:

        def slow(*arguments):
            wait([pool.submit(change, keeper, chat)], timeout=0.1)
            return write(*arguments)

        monkeypatch.setattr(keeper.folder, "keep", slow)
        keep(keeper, "s", TOLD)
    monkeypatch.setattr(keeper.folder, "keep", write)
    keep(keeper, "s", [*TOLD, *ASKED])  # after the change
    assert keeper.folder.names() == left


def test_two_tabs_of_a_conversation_lose_nothing(keeper):
    keep(keeper, "s", TOLD)
    other, _, _, messages = keeper.open("What is a")
    keep(keeper, "s", [*TOLD, {"role": "user", "content": "here"}])
    chat = keep(keeper, other, [*messages, {"role": "user", "content": "there"}])
    assert chat.name == "What is a 2"
    assert "What is a 2" in chat.problem
    last = [keeper.open(name)[3][-1]["content"] for name in ("What is a", "What is a 2")]
    assert last == ["here", "there"]


def test_a_full_disk_loses_nothing_and_says_so(keeper, monkeypatch):
    keep(keeper, "s", ASKED)
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(file, "replacing", Mock(side_effect=full))
        chat = keep(keeper, "s", TOLD)
    assert "cannot be written: No space left on device" in chat.problem
    assert keeper.open("What is a")[3] == ASKED  # as it was
    assert keeper.sessions.get("s")[0] == TOLD
    assert keep(keeper, "s", TOLD).problem == ""
    assert keeper.open("What is a")[3] == TOLD


def test_an_export_can_be_imported(keeper):
    keep(keeper, "s", TOLD)
    name, text = keeper.export("s", "Be brief.", "json")
    system, messages = without_system(imported([name, len(text), text]))
    assert (name, system, messages) == ("What is a.json", "Be brief.", TOLD)
    both = [{"role": "system", "content": text} for text in "AB"]
    assert without_system(both + TOLD) == ("A\n\nB", TOLD)
    text = "# b\n\n## You\n\nWhat is *a*?\n\n## Answer\n\n```python\nx\n```\n"
    assert (keeper.rename("s", "b"), keeper.export("s", "", "md")) == (True, ["b.md", text])


@pytest.mark.parametrize(("text", "line"), [
    ("", "not the JSON of a conversation"), ("[" * 9999, "not the JSON of a conversation"),
    ("[]", "expected a list of messages"),
    (json.dumps([*ASKED, {"role": "user"}]), "number 2: expected a role"),
    (json.dumps([dict(ASKED[0], content="x" * 16_001)]), "of 16,000 characters"),
    (json.dumps(ASKED * 401), "at most 400 messages"),
    ('[{"role": "user", "content": "\\ud800"}]', "not the JSON of a conversation"),
])  # fmt: skip
def test_what_is_no_conversation_is_refused_in_one_line(text, line):
    said = refusal(imported, ["<b>.json", len(text), text])
    assert said.startswith("<b>.json: not imported: ")
    assert line in said


def test_a_file_that_is_too_large_is_refused():
    said = refusal(imported, ["big.json", MAX_IMPORT + 1, ""])
    assert said == "big.json: not imported: more than 240,000 bytes as JSON"
    for wrong in (None, [], ["a"], ["a", "b", 3], {"a": 1}):
        assert "not imported" in refusal(imported, wrong)


def test_without_a_folder_nothing_is_saved():
    assert keep(Keeper(None, Sessions(1)), "s", ASKED) == Chat([ASKED], 0)
