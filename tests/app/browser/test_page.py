"""Tabs, visitors and looks, in the real app."""

import json
import re
import urllib.request

import pytest
from mlx_gateloop.app.page.examples import TEXT_EXAMPLES

# The contrast of an element's text with what lies behind it, as WCAG defines it.
CONTRAST = """element => {
  const light = ([r, g, b]) => [0.2126 * r, 0.7152 * g, 0.0722 * b].reduce((a, c) => a + c);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const text = parts(getComputedStyle(element).color);
  let ground = [0, 0, 0], opacity = 0;
  for (let behind = element; behind && opacity < 1; behind = behind.parentElement) {
    const [r, g, b, alpha = 1] = parts(getComputedStyle(behind).backgroundColor);
    ground = [r, g, b].map((c, i) => ground[i] + (1 - opacity) * alpha * c);
    opacity += (1 - opacity) * alpha;
  }
  const [a, b] = [text, ground].map(c => light(c.slice(0, 3).map(linear))).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
BEGUN = "document.querySelector('#chat-view .gl').view.have > 20"
DARK = (
    "Math.max(...getComputedStyle(document.querySelector('gradio-app'))"
    ".backgroundColor.match(/\\d+/g)) < 64"
)
WHERE = "'#' + document.activeElement.closest('[id^=chat-box], #settings')?.id"
# What can still be reached in the settings when they have just closed.
IN_SIGHT_ONCE_CLOSED = """async () => {
  const settings = document.querySelector('#settings');
  settings.querySelector('.toggle-button').click();
  while (!settings.classList.contains('open')) await new Promise(requestAnimationFrame);
  settings.querySelector('.toggle-button').click();
  while (settings.classList.contains('open')) await new Promise(requestAnimationFrame);
  const visible = (e) => e.checkVisibility({ visibilityProperty: true });
  return [...settings.querySelectorAll('*')].filter(visible).map((e) => e.outerHTML);
}"""
# The histogram's axis is drawn, in the ink of the theme when it was.
INK_IS_THE_TEXT_S = """() => {
  const gl = document.querySelector('#chat-view .gl'), canvas = gl.querySelector('.histogram');
  const ratio = devicePixelRatio, at = [1, (canvas.clientHeight - 16) * ratio];
  const [r, g, b] = canvas.getContext('2d').getImageData(...at, 1, 1).data;
  const text = getComputedStyle(gl).color.match(/\\d+/g).map(Number);
  return [r, g, b].every((value, i) => Math.abs(value - text[i]) < 8);
}"""
READ = [
    "#chat [data-testid=user] .chatbot",
    "#chat [data-testid=bot] .chatbot",
    "#chat-status span",
    "#chat-status b",
    "#model-about",
    "#chat-view .caption b",
    "#chat-view .caption span",
    "#chat-view .count",
    "#chat-view .npz",
    "#chat-view .text span",
    "#chat-view .text span.prompt",
    "#chat-view .text span.selected",  # the strongest
    "#chat-view .time .now",
    "#chat-view .share",
    "#chat-box textarea",
    "#clear",
    "#tabs button.selected",
    "footer button",
    ".label",
]


def seen(url, run):
    """The answer to a view's first question; done if the run ended within 1024 tokens."""
    with urllib.request.urlopen(f"{url}config") as answer:
        components = json.load(answer)["components"]
    view = next(c["id"] for c in components if c["props"].get("elem_id") == "chat-view")
    question = {"component_id": view, "fn_name": "updates_since", "session_hash": "x"}
    request = urllib.request.Request(
        f"{url}gradio_api/component_server",
        json.dumps({**question, "data": [run, 0, 0, 0]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_completion_and_side_by_side(page):
    page.go_to("Completion", "complete")
    for name, text in TEXT_EXAMPLES.items():
        page.tab.get_by_role("button", name=name).click()
        box = "document.querySelector('#complete-box textarea')"
        page.tab.wait_for_function(f"(text) => {box}.value === text", arg=text)
    beginning = "Once upon\n" * 40  # longer than what Gradio follows by itself
    page.ask(beginning, "complete")
    tokens = page.finished("complete")
    assert tokens == page.tokens + len(beginning)
    text = page.tab.locator("#complete-text textarea")
    assert text.input_value().startswith(beginning)
    assert text.evaluate("t => t.scrollHeight > t.clientHeight")
    end = "document.querySelector('#complete-text textarea')"
    page.tab.wait_for_function(f"{end}.scrollTop + {end}.clientHeight > {end}.scrollHeight - 9")
    text.evaluate("t => { t.scrollTop = 0 }")
    page.tab.wait_for_function(f"{end}.scrollTop === 0")
    page.ask(f"Twice upon\n{beginning}", "complete")  # longer: a new text's end is in sight again
    page.finished("complete")
    page.tab.wait_for_function(f"{end}.scrollTop + {end}.clientHeight > {end}.scrollHeight - 9")
    page.go_to("Side by side", "right")
    page.ask("both", "compare", "left")
    for side in ("left", "right"):
        page.finished(side)
        assert "both" in "".join(piece["text"] for piece in page.view("pieces", side))
    assert page.view("run", "left") != page.view("run", "right")


@pytest.mark.slow
def test_two_visitors_at_once(page, new_page):
    other = new_page()
    for visitor in (page, other):
        visitor.set_tokens(300)
    page.ask("first visitor")
    other.ask("second visitor")
    for visitor, text in ((page, "first visitor"), (other, "second visitor")):
        visitor.finished()
        assert text in "".join(piece["text"] for piece in visitor.view("pieces"))
    assert page.view("run") != other.view("run")


def test_the_run_of_a_closed_tab_ends(server, new_page, page):
    closed = new_page(context=page.tab.context)
    closed.set_tokens(1024)
    closed.choose("slow")
    closed.ask("long")
    run = closed.view("run")
    closed.tab.close()
    while not (answer := seen(server.url, run))["done"]:
        assert len(answer["pieces"]) < 1024
        page.tab.wait_for_timeout(100)


def test_a_reload_keeps_chat_view_settings_and_theme(page, new_page):
    page.set("#system textarea", "Be brief.")
    page.set_tokens(40)
    page.tab.locator("#dark").click()
    page.tab.locator("#words-fade input").uncheck()
    page.ask("before the reload")
    tokens = page.finished()
    answer, run = page.messages("bot"), page.view("run")
    page.reopen()
    page.shows(1)
    assert page.messages("bot") == answer
    assert page.finished() == tokens
    assert page.view("run") == run
    assert page.tab.evaluate(DARK)
    assert page.tab.locator("#system textarea").input_value() == "Be brief."
    assert not page.tab.locator("#words-fade input").is_checked()
    page.ask("after")  # its state goes on, with the settings
    page.finished()
    now, whole = page.read()
    assert now < 60 < tokens < whole
    assert page.messages("bot")[0] == answer[0]
    other = new_page(context=page.tab.context)  # nobody's chat is shown to another tab
    assert other.messages() == []
    assert other.tab.locator("#system textarea").input_value() == ""
    assert other.tab.evaluate(DARK)
    page.tab.locator("#clear").click()
    page.shows(0)
    page.reopen()
    page.set_tokens(8)
    page.ask("anew")
    page.finished()
    assert page.messages() == ["anew"]


def test_a_reload_within_an_answer_keeps_what_was_written(page):
    page.set_tokens(1024)
    page.choose("slow")
    page.ask("before the reload")
    page.tab.wait_for_function(BEGUN)
    run = page.view("run")
    page.reopen()
    page.shows(1)
    assert page.finished() < 1024
    assert page.view("run") == run
    assert page.messages("bot")[0]


def test_a_link_s_preview_names_the_project(server):
    with urllib.request.urlopen(server.url) as answer:
        text = answer.read().decode()
    assert re.findall(r'og:title" content="(.*?)"', text) == ["GateLoop"]
    head = text.partition("<script")[0]
    assert "Gradio" not in head
    assert "gradio.app" not in head


def test_tab_reaches_what_is_in_sight_and_buttons_have_names(page):
    for name in ("Settings", "Light or dark", "Send", "Stop"):
        button = page.tab.get_by_role("button", name=name, exact=True)
        assert button.count() == 1, name
        assert button.is_visible()
    assert page.tab.evaluate(IN_SIGHT_ONCE_CLOSED) == []
    page.tab.locator("#model input").focus()
    reached = []
    for _ in range(30):
        page.tab.keyboard.press("Tab")
        reached.append(page.tab.evaluate(WHERE))
    assert "#chat-box" in reached
    assert "#settings" not in reached
    page.settings()
    page.tab.locator("#settings textarea").first.focus()
    assert page.tab.evaluate(WHERE) == "#settings"


def test_the_page_is_light_or_dark_and_can_be_read(page):
    page.ask("look")
    page.finished()
    for scheme in ("light", "dark"):
        page.tab.emulate_media(color_scheme=scheme)
        page.reopen()
        page.finished()
        assert page.tab.evaluate(DARK) == (scheme == "dark")
        page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")
        for selector in READ:
            assert page.tab.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
    page.tab.locator("#dark").click()
    page.tab.wait_for_function(f"!({DARK})")
    page.tab.wait_for_function(INK_IS_THE_TEXT_S)
    page.tab.emulate_media(color_scheme="light")


def test_a_phone_shows_everything_in_one_column(new_page):
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.set_tokens(48)
    for tab, name, view in (("Chat", "chat", "chat"), ("Side by side", "compare", "left")):
        page.go_to(tab, view)
        page.ask("a long message without any end " * 4, name, view)
        page.finished(view)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390
        box = page.tab.locator(f"#{view}-view").bounding_box()
        assert box["x"] >= 0
        assert box["width"] > 300
    page.go_to("Chat", "chat")
    chat, view = (page.tab.locator(f"#{n}").bounding_box() for n in ("chat", "chat-view"))
    assert view["y"] >= chat["y"] + chat["height"]
