"""A conversation that is changed, stopped, left and gone on with."""

import pytest

SPECIAL = '<b> & "x" ${1} &lt; `y`'
MID_RUN = "document.querySelector('#chat-view .gl').view.have > 20"


@pytest.fixture
def running(page):
    """A page in the middle of a long answer."""
    page.set_tokens(1024)
    page.choose("slow")
    page.ask("a long one")
    page.tab.wait_for_function(MID_RUN)
    return page


def choose(page, model, about):
    """Choose a model and wait for its description: all that was sent before is shown by then."""
    page.choose(model)
    shown = "document.querySelector('#model-about').innerText"
    page.tab.wait_for_function(f"about => {shown}.includes(about)", arg=about)


def test_a_second_message_reads_only_itself(page):
    page.ask("a first message " * 20)
    page.finished()
    page.ask("b")
    page.finished()
    now, whole = page.read()
    assert now < 60
    assert whole > 300


def test_stop_ends_the_run_and_keeps_the_text(running):
    running.tab.locator("#chat-stop").click()
    assert 20 < running.finished() < 1024
    assert "stopped" in running.tab.locator("#chat-status").inner_text()
    assert running.messages("bot")[0]


@pytest.mark.slow
def test_stop_ends_only_what_runs_in_its_own_tab(page, new_page):
    beside, stranger = new_page(context=page.tab.context), new_page()
    for visitor, tokens in ((page, 1024), (beside, 300), (stranger, 300)):
        visitor.set_tokens(tokens)
    page.choose("slow")
    stranger.go_to("Completion", "complete")
    beside.ask("beside")
    stranger.ask("stranger", "complete")
    page.ask("stopped")
    # at once, though another tab is in front
    page.tab.locator("#chat-stop").dispatch_event("click")
    assert page.finished() < 1024
    assert beside.finished() > 300
    assert stranger.finished("complete") > 300


def test_what_is_typed_during_a_run_stays(running):
    box = running.tab.locator("#chat-box textarea")
    box.press_sequentially("the next question", delay=15)
    assert not running.view("done")
    running.tab.locator("#chat-stop").click()
    running.finished()
    assert box.input_value() == "the next question"


def test_no_button_moves_for_the_figures_of_an_answer(page):
    def places():
        return page.tab.evaluate(
            "['#chat-stop', '#clear'].map(id => scrollY +"  # a click may scroll to its button
            "document.querySelector(id).getClientRects()[0].y)"
        )

    page.ask("hello")
    page.finished()
    after = places()  # below several lines of figures, if they were above
    page.tab.locator("#clear").click()
    page.shows(0)
    assert places() == pytest.approx(after, abs=2)


def test_a_new_conversation_during_a_run_leaves_nothing_of_the_old_one(running):
    running.tab.locator("#clear").click()
    running.shows(0)
    choose(running, "b", "fixed transitions")
    assert running.messages() == running.messages("bot") == []
    assert running.view("run") is None
    assert running.view("pieces") == []
    assert running.tab.locator("#chat-status").inner_text().strip() == "ready"
    running.set_tokens(8)
    running.ask("anew")
    running.finished()
    assert running.messages() == ["anew"]
    now, whole = running.read()
    assert now == whole


def test_a_saved_conversation_goes_on(page):
    page.ask("remember me")
    page.finished()
    page.save("kept for later")
    answer = page.messages("bot")
    page.set_tokens(1024)
    page.ask("something else")
    page.tab.wait_for_function(MID_RUN)
    page.open_saved()  # during a run
    page.shows(1)
    choose(page, "b", "fixed transitions")
    choose(page, "a", "data-controlled transitions")
    assert page.messages("bot") == answer
    assert page.view("run") is None
    assert "starts with the next answer" in page.view("heatmaps.hint")
    assert "starts with the next answer" in page.tab.locator("#chat-view .note").inner_text()
    assert "starts with the next answer" in page.tab.locator("#chat-words .status").inner_text()
    page.set_tokens(8)
    page.ask("and now")
    page.finished()
    assert page.messages() == ["remember me", "and now"]
    now, whole = page.read()
    assert now == whole > page.tokens  # all is in the view
    page.open_saved()  # after a run
    page.shows(1)
    page.ask("and now")
    page.finished()
    assert page.read() == (now, whole)


@pytest.mark.slow
def test_a_saved_conversation_goes_on_in_another_session(page, new_page):
    page.ask("from one to the other")
    page.finished()
    page.save("given away")
    other = new_page()
    other.set_tokens(8)
    other.settings()
    other.tab.get_by_text("Saved conversations").click()
    other.tab.locator("#saved input").click()
    other.tab.get_by_role("option", name="given away").click()
    other.settings()
    other.open_saved()
    other.shows(1)
    assert other.messages("bot") == page.messages("bot")
    other.ask("and now")
    other.finished()
    now, whole = other.read()
    assert now == whole > page.tokens


def test_retry_and_undo_go_back(page):
    page.ask("one")
    tokens, run = page.finished(), page.view("run")
    page.ask("two < three")
    page.finished()
    first, last = page.messages("bot")
    before = page.view("run")
    page.tab.get_by_label("Retry").last.click()
    page.begun(before)
    page.finished()
    assert page.messages("bot")[0] == first
    assert page.messages("bot")[1] != last  # drawn anew
    assert page.read()[0] == 1  # the state before the answer was kept
    page.tab.get_by_label("Undo").last.click()
    page.shows(1)
    assert page.messages("bot") == [first]
    assert page.tab.locator("#chat-box textarea").input_value() == "two < three"
    page.tab.wait_for_function(
        "n => document.querySelector('#chat-view .gl').view.pieces.length === n", arg=tokens
    )
    assert page.view("run") == run  # the view goes back too
    page.tab.get_by_label("Undo").last.click()
    page.shows(0)
    page.tab.wait_for_function("!document.querySelector('#chat-view .gl').view.run")


def test_an_edited_message_is_sent_and_shown_as_it_was_typed(page):
    for text in (SPECIAL, "later"):
        page.ask(text)
        page.finished()
    before = page.view("run")
    page.tab.get_by_label("Edit").first.click()
    box = page.tab.locator("#chat textarea")
    assert box.input_value() == SPECIAL
    box.fill(SPECIAL + "&amp;</b>")
    page.tab.get_by_label("Submit").first.click()
    page.begun(before)
    page.finished()
    assert page.messages() == [SPECIAL + "&amp;</b>"]  # what came later is gone
    assert SPECIAL + "&amp;</b>" in "".join(piece["text"] for piece in page.view("pieces"))


def test_an_edit_that_changes_nothing_changes_nothing(page):
    page.ask(SPECIAL)
    page.finished()
    before = page.view("run")
    page.tab.get_by_label("Edit").first.click()
    page.tab.get_by_label("Submit").first.click()
    page.begun(before)
    page.finished()
    assert page.messages() == [SPECIAL]


def test_spaces_and_lines_are_shown_as_they_are(page):
    text = "  if x:\n      y\n\n    z  "
    page.ask(text)
    page.finished()
    assert page.messages() == [text]


def test_another_model_goes_on_with_the_chat(page):
    page.ask("for both")
    page.finished()
    choose(page, "b", "fixed transitions")
    page.ask("go on")
    page.finished()
    now, whole = page.read()
    assert now == whole > page.tokens  # its state is another, so it reads all
    assert page.messages() == ["for both", "go on"]


def send(page, text):
    page.tab.locator("#chat-box textarea").fill(text)
    page.tab.locator("#chat-box textarea").press("Enter")


def click_in_saved(page, button):
    page.settings()
    page.tab.get_by_text("Saved conversations").click()
    page.tab.locator(button).click()


REFUSED = {
    "too long": lambda page: send(page, "x" * 16_001),
    "empty": lambda page: send(page, " "),
    "no name": lambda page: click_in_saved(page, "#save"),
    "no choice": lambda page: click_in_saved(page, "#open"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_hides_nothing_and_says_why(page, what):
    page.ask("the question")
    page.finished()
    REFUSED[what](page)
    notice = page.tab.locator("[data-testid=toast-text]").first.inner_text()
    page.tab.wait_for_timeout(300)  # Gradio's veil comes with the notice
    on_top = (
        "(() => { const element = document.querySelector('#chat [data-testid=user] .chatbot');"
        "const box = element.getBoundingClientRect();"
        "return element.contains(document.elementFromPoint(box.x + 5, box.y + 5)); })()"
    )
    assert page.tab.evaluate(on_top)
    if not what.startswith("no "):
        assert notice in page.tab.locator("#chat-status").inner_text()
