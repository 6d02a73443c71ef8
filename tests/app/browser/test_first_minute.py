"""A new user's first minute: docs/first_minute.py times it, from the start of the app."""

import time

from helpers.browser import Page, new_context
from helpers.first_minute import WORD, FirstMinute

MAX_CLICKS = 5


def test_five_clicks_from_the_tour_to_a_word_that_is_forgotten_and_proven(browser, server):
    context = new_context(browser, returning=False)
    began = time.monotonic()
    visitor = FirstMinute(Page(context, server.url))
    visitor.skip_the_tour()
    visitor.page.choose("demo")  # make demo begins with it, this server with another
    visitor.ask()
    assert visitor.page.messages("user") == ["What does `str.split` do?"]
    assert WORD in visitor.page.messages("bot")[0]
    note, before, after = visitor.forget()
    print(f"{time.monotonic() - began:.1f} s and {visitor.clicks} clicks")
    assert note.startswith("What changed is marked")
    assert WORD in before
    assert after
    assert WORD not in after
    assert visitor.clicks == MAX_CLICKS
    assert not visitor.page.problems
    context.close()
