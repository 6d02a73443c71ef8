"""Chats that a page finds again: a few, and no longer than their pages are there."""

from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.page.sessions import MAX_BRANCHES, Sessions

ASKED = [{"role": "user", "content": "a"}]


def test_only_the_latest_chats_are_kept():
    sessions = Sessions(max_sessions=2)
    for session in ("one", "two", "one", "three"):
        sessions.put(session, ASKED)
    assert [sessions.resume(name) for name in ("two", "one", "three", "")] == [0, 1, 1, 0]
    assert sessions.get("one") == sessions.get("three") == (ASKED, None)
    assert sessions.get("two") == ([], None)


def test_what_was_written_after_the_page_had_gone_is_there():
    sessions, run = Sessions(max_sessions=2), Run("tiny")
    for shown in (ASKED, [*ASKED, {"role": "assistant", "content": "b"}]):
        sessions.put("one", shown, run)
        run.pieces += [Token("b", 0, "answer"), Token("c", 0, "answer")]
        messages, kept = sessions.get("one")
        assert messages == [*ASKED, {"role": "assistant", "content": run.text}]
        assert kept is run
    del run, kept
    assert sessions.get("one") == (shown, None)  # it keeps no run alive


def test_what_a_retry_an_edit_or_an_undo_leaves_stays_as_a_branch():
    sessions, answer = Sessions(max_sessions=1), {"role": "assistant", "content": "b"}
    whole = [*ASKED, answer]
    other = [{"role": "user", "content": "x"}]

    def begin(messages):
        sessions.begin("one", messages)
        chat = sessions.chat("one")
        return chat.at, len(chat.branches)

    assert begin(ASKED) == (0, 1)
    sessions.put("one", whole)
    assert begin(whole) == begin([*whole, *ASKED]) == (0, 1)  # Continue, and a new message
    sessions.put("one", whole)
    assert begin(ASKED) == (1, 2)  # a retry
    assert begin(other) == (2, 3)  # an edit
    for step, shown in ((-1, ASKED), (-1, whole), (-1, whole), (1, ASKED), (1, other), (1, other)):
        sessions.turn("one", step)
        assert sessions.get("one")[0] == shown
    for n in range(2 * MAX_BRANCHES):
        begin([dict(other[0], content=str(n))])
    assert len(sessions.chat("one").branches) == MAX_BRANCHES
    sessions.chat("one").at = 0
    oldest = sessions.get("one")[0]
    begin(ASKED)
    assert sessions.chat("one").branches[0] == oldest, "what was just left stays"
