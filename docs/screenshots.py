"""The README's pictures of the app, made anew: `python docs/screenshots.py`.

It needs Playwright (`pip install playwright`) and a Chromium; the answers are the embedded model's.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from browser import chromium, served  # noqa: E402

OUT = ROOT / "docs" / "images"
WIDE = {"width": 1440, "height": 1000}
PROMPT = "What does `str.split` do?"
SEED = 1


def open_page(browser: Browser, url: str, **options: object) -> Page:
    page = browser.new_context(**{"viewport": WIDE, **options}).new_page()
    page.goto(url)
    page.wait_for_function("document.querySelector('#chat-view .gl')?.view")
    page.wait_for_timeout(500)
    page.evaluate("document.querySelector('#settings .toggle-button').click()")
    page.locator("#seed input").fill(str(SEED))
    page.locator("#seed input").press("Tab")
    page.evaluate("document.querySelector('#settings .toggle-button').click()")
    page.wait_for_timeout(500)
    return page


def ask(page: Page, tab: str, view: str, text: str = PROMPT) -> None:
    element = f"document.querySelector('#{view}-view .gl')"
    page.wait_for_function(f"{element}?.view")
    before = page.evaluate(f"{element}.view.run")
    page.locator(f"#{tab}-box textarea").fill(text)
    page.locator(f"#{tab}-box textarea").press("Shift+Enter" if tab == "complete" else "Enter")
    page.wait_for_function(f"o => {element}.view.run !== o && {element}.view.done", arg=before)
    page.wait_for_timeout(800)


def click_token(page: Page, view: str, share: float) -> None:
    spans = page.locator(f"#{view}-view .text span")
    spans.nth(int(share * spans.count())).click()
    page.wait_for_timeout(500)


def pictures(browser: Browser, url: str) -> None:
    for name, scheme in (("chat", "light"), ("chat-dark", "dark")):
        page = open_page(browser, url, color_scheme=scheme)
        ask(page, "chat", "chat")
        ask(page, "chat", "chat", "And `str.join`?")
        click_token(page, "chat", 0.85)
        page.locator("#chat-view .magnitude").hover(position={"x": 150, "y": 90})
        page.screenshot(path=OUT / f"{name}.png", full_page=True)
    page.get_by_role("tab", name="Side by side").click()
    ask(page, "compare", "left")
    page.wait_for_function("document.querySelector('#right-view .gl').view.done")
    click_token(page, "left", 0.8)
    click_token(page, "right", 0.8)
    page.screenshot(path=OUT / "side-by-side.png", full_page=True)
    phone = {"width": 390, "height": 844}
    page = open_page(browser, url, viewport=phone, device_scale_factor=2, is_mobile=True)
    ask(page, "chat", "chat")
    click_token(page, "chat", 0.8)
    page.screenshot(path=OUT / "phone.png", full_page=True)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        log, kept = Path(folder) / "log", Path(folder) / "kept"
        with served(log, "--conversations", str(kept)) as (url, _), chromium() as browser:
            pictures(browser, url)


if __name__ == "__main__":
    main()
