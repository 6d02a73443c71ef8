"""Pictures of the app: `python docs/screenshots.py` or, for review in build/screens, `... screens`.

It needs Playwright (`pip install playwright`) and a Chromium; the answers are the embedded model's.
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

from first_minute import FirstMinute
from playwright.sync_api import Browser

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import ROOT, Page, chromium, new_context, served
from mlx_gateloop.app.page.examples import TEXT_EXAMPLES

OUT = ROOT / "docs" / "images"
SCREENS = ROOT / "build" / "screens"
SIZES = [(1366, 650), (1280, 800), (390, 844)]
WIDE = {"width": 1440, "height": 1000}
PROMPT = "What does `str.split` do?"
SEED = 1


def open_page(browser: Browser, url: str, **options: object) -> Page:
    page = Page(new_context(browser, **{"viewport": WIDE, **options}), url)
    page.set("#seed input", SEED)
    return page


def ask(page: Page, name: str, view: str, text: str = PROMPT) -> None:
    page.ask(text, name, view)
    page.finished(view)


def click_token(page: Page, view: str, share: float) -> None:
    spans = page.tab.locator(f"#{view}-view .text span")
    at = int(share * spans.count())
    while not spans.nth(at).is_visible():  # a line end
        at -= 1
    spans.nth(at).click()
    page.tab.wait_for_function(f"document.querySelector('#{view}-view .gl').view.memory.row")


def take(page: Page, name: str, folder: Path = OUT) -> None:
    page.tab.wait_for_timeout(500)  # until Gradio's own animations end
    page.tab.screenshot(path=folder / f"{name}.png", full_page=folder == OUT)


def screens(browser: Browser, url: str) -> None:
    """Take what a window shows first, after an answer, and without a word of the question."""
    for (width, height), scheme in product(SIZES, ("light", "dark")):
        size, name = {"width": width, "height": height}, f"{width}-{scheme}"
        page = open_page(browser, url, viewport=size, color_scheme=scheme)
        visitor = FirstMinute(page)
        take(page, f"{name}-1-first", SCREENS)
        visitor.ask()
        take(page, f"{name}-2-answer", SCREENS)
        visitor.forget()
        take(page, f"{name}-3-forgotten", SCREENS)


def tour(browser: Browser, url: str) -> None:
    context = new_context(browser, returning=False, viewport={"width": 840, "height": 700})
    page = Page(context, url)
    for step, name in ((1, "forget"), (2, "kept"), (4, "fixed")):
        page.tab.get_by_role("button", name=f"Step {step}: ").click()
        page.tab.wait_for_timeout(500)  # it moves
        page.tab.get_by_role("dialog").screenshot(path=OUT / f"tour-{name}.png")


def pictures(browser: Browser, url: str) -> None:
    for name, scheme in (("chat", "light"), ("chat-dark", "dark")):
        page = open_page(browser, url, color_scheme=scheme)
        ask(page, "chat", "chat")
        ask(page, "chat", "chat", "And `str.join`?")
        click_token(page, "chat", 0.85)
        page.tab.locator("#chat-view .layers").hover(position={"x": 150, "y": 50})
        take(page, name)
    page.go_to("Side by side", "right")
    ask(page, "compare", "left")
    page.finished("right")
    click_token(page, "left", 0.8)
    click_token(page, "right", 0.8)
    take(page, "side-by-side")
    page = open_page(browser, url)
    page.go_to("Completion", "complete")
    ask(page, "complete", "complete", TEXT_EXAMPLES["asyncio/queues.py: a class"])
    click_token(page, "complete", 0.9)
    take(page, "completion")
    page = open_page(browser, url)
    page.tab.get_by_role("tab", name="Memory lab").click()
    page.tab.wait_for_function("document.querySelector('#lab .lab')?.lab?.solved")
    take(page, "lab")
    phone = {"width": 390, "height": 844}
    page = open_page(browser, url, viewport=phone, device_scale_factor=2, is_mobile=True)
    ask(page, "chat", "chat")
    click_token(page, "chat", 0.8)
    take(page, "phone")


def main() -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        log, saved = Path(folder) / "log", Path(folder) / "saved"
        with served(log, "--conversations", saved) as server, chromium() as browser:
            for make in [screens] if sys.argv[1:] == ["screens"] else [tour, pictures]:
                make(browser, server.url)


if __name__ == "__main__":
    main()
