"""Tabs, users and looks, in the real app."""

import json
import urllib.request

from helpers.browser import has, view
from mlx_gateloop.app.page.examples import TEXT_EXAMPLES

from .test_safety import HOSTILE

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
# The axis is drawn in the ink of the theme when it was.
INK_IS_THE_TEXT_S = """() => {
  const gl = document.querySelector('#chat-view .gl');
  return gl.view.heatmaps.axis.ink === getComputedStyle(gl).color;
}"""
READ = [
    *(f"#chat [data-testid={who}] .chatbot" for who in ("user", "bot")),
    *("#chat-status span", "#chat-status b", "#model-about", "#chat-box textarea", "#clear"),
    *(f"#chat-view .{part}" for part in ("caption b", "caption span", "count", "npz", "share")),
    *(f"#chat-view .text span{kind}" for kind in ("", ".prompt", ".selected")),  # the strongest
    *("#chat-view .time .now", "#tabs button.selected", "footer button"),
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


def test_completion_goes_on_in_its_box_and_a_reload_keeps_it(page):
    page.go_to("Completion", "complete")
    box = page.tab.locator("#complete-box textarea")
    for name, text in TEXT_EXAMPLES.items():
        page.tab.get_by_role("button", name=name).click()
        filled = "document.querySelector('#complete-box textarea')"
        page.tab.wait_for_function(f"(text) => {filled}.value === text", arg=text)
    beginning = "Once upon\n" * 40
    assert page.answer(beginning, "complete") == page.tokens + len(beginning)
    once = box.input_value()
    assert once.startswith(beginning)
    assert len(once) > len(beginning)
    assert "at the limit" in page.tab.locator("#complete-status").inner_text()
    end = f"{filled}.scrollTop + {filled}.clientHeight > {filled}.scrollHeight - 9"
    page.tab.wait_for_function(end)
    before = page.view("run", "complete")
    page.tab.locator("#complete-box").get_by_role("button", name="Continue").click()
    page.begun(before, "complete")
    page.finished("complete")
    whole = box.input_value()
    assert whole.startswith(once)
    assert len(whole) > len(once)
    words = page.tab.locator("#next-words li")
    assert words.count() == 8
    shares = "[...document.querySelectorAll('#next-words i')].map((bar) => bar.style.width).join()"
    last = page.view("pieces.length", "complete")  # the words after it come with its row
    page.tab.wait_for_function(f"{view('complete')}.row?.retention.length === {last}")
    warm = page.tab.evaluate(shares)
    slider = page.tab.locator("#temperature-here input[type=number]")
    slider.fill("2")
    page.tab.wait_for_function(f"{shares} !== '{warm}'")
    slider.fill("0.7")
    page.tab.wait_for_function(f"{shares} === '{warm}'")
    page.answer("".join(HOSTILE) + beginning, "complete")
    page.tab.wait_for_function(end)
    text = box.input_value()
    page.reopen()
    page.tab.wait_for_function(f"text => {filled}.value === text", arg=text)
    assert box.is_visible()  # in the same tab


def test_a_reload_keeps_what_a_tab_has_and_a_closed_tab_ends_its_run(page, new_page):
    page.set("#system textarea", "Be brief.")
    page.set_tokens(1024)
    page.choose("slow")
    page.tab.locator("#dark").click()
    page.ask("before the reload")
    page.tab.locator("#words-fade input").uncheck()
    page.tab.wait_for_function(has(100))
    run = page.view("run")
    page.reopen()
    page.shows(1)
    tokens, answer = page.finished(), page.messages("bot")
    assert tokens < 1024
    assert answer[0]
    assert page.view("run") == run
    assert page.tab.evaluate(DARK)
    assert page.tab.locator("#system textarea").input_value() == "Be brief."
    assert not page.tab.locator("#words-fade input").is_checked()
    page.set_tokens(8)
    page.answer("after")  # its state goes on, with the settings
    now, whole = page.read()
    assert now < 60 < 100 <= tokens < whole
    assert page.messages("bot")[0] == answer[0]
    other = new_page(context=page.tab.context)  # nobody's chat is shown to another tab
    assert other.messages() == []
    assert other.tab.locator("#system textarea").input_value() == ""
    assert other.tab.evaluate(DARK)
    other.set_tokens(1024)
    other.choose("slow")
    other.ask("long")
    run = other.view("run")
    other.tab.close()
    while not (answer := seen(page.url, run))["done"]:
        assert len(answer["pieces"]) < 1024
        page.tab.wait_for_timeout(100)
    page.reload()


def test_tab_reaches_what_is_in_sight_and_buttons_have_names(page):
    assert not page.tab.locator("#chat-stop").is_visible()  # replaces Send while the model writes
    for name in ("Settings", "Light or dark", "Send"):
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
    page.settings()


def test_the_page_is_light_or_dark_and_can_be_read(answered):
    page = answered
    page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")
    for dark in (True, False):
        page.tab.locator("#dark").click()
        page.tab.wait_for_function(DARK if dark else f"!({DARK})")
        page.tab.wait_for_function(INK_IS_THE_TEXT_S)
        page.tab.mouse.move(0, 0)
        page.tab.wait_for_timeout(300)  # colours change slowly
        for selector in READ:
            assert page.tab.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
