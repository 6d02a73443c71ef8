"""Many tabs of one browser at once."""

import pytest

TABS = 4  # each keeps a connection while it answers
BEGUN = "document.querySelector('#chat-view .gl').view.have > 20"


@pytest.mark.slow
def test_many_tabs_of_one_browser_chat_stop_and_see_the_view(new_page):
    tabs = [new_page()]
    while len(tabs) < TABS:
        tabs.append(new_page(context=tabs[0].tab.context))
    for tab in tabs:
        tab.set_tokens(1024)
        tab.choose("slow")
        tab.tab.locator("#chat-box textarea").fill("until it is stopped")
    for tab in tabs:
        tab.tab.locator("#chat-box textarea").press("Enter")
    for tab in tabs:  # the engine runs four at once: stopped ones make room for the others
        tab.tab.wait_for_function(BEGUN)
        tab.tab.locator("#chat-stop").click()
        while tab.finished() and not ended(tab).endswith("stopped"):  # it was over before
            tab.ask("once more")
            tab.tab.locator("#chat-stop").click()
    assert len({tab.view("run") for tab in tabs}) == TABS


def ended(tab):
    return tab.tab.locator("#chat-status").inner_text()
