"""Chats that a page finds again: a few, and no longer than their pages are there."""

from mlx_gateloop.app.generation.run import Run, Token
from mlx_gateloop.app.page.visits import Visits

ASKED = [{"role": "user", "content": "a"}]


def test_only_the_latest_chats_are_kept():
    visits = Visits(most=2)
    for session in ("one", "two", "one", "three"):
        visits.put(session, ASKED)
    assert [visits.come_back(session) for session in ("two", "one", "three", "")] == [
        False,
        True,
        True,
        False,
    ]
    assert visits.get("one") == visits.get("three") == (ASKED, None)
    assert visits.get("two") == ([], None)


def test_a_chat_ends_with_its_last_page():
    visits = Visits(most=2)
    visits.put("one", ASKED)
    visits.come_back("one")
    assert [visits.leave("one"), visits.leave("one")] == [False, True]
    assert not visits.come_back("one")


def test_what_was_written_after_the_page_had_gone_is_there():
    visits, run = Visits(most=2), Run("tiny")
    for shown in (ASKED, [*ASKED, {"role": "assistant", "content": "b"}]):
        visits.put("one", shown, run)
        run.pieces += [Token("b", 0, "answer"), Token("c", 0, "answer")]
        messages, kept = visits.get("one")
        assert messages == [*ASKED, {"role": "assistant", "content": run.text}]
        assert kept is run
    del run, kept
    assert visits.get("one") == (shown, None)  # it keeps no run alive
