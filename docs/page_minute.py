"""A new user's first minute with the site, timed: `python docs/page_minute.py` after `make docs`.

Opens the site's first page, types a question, and forgets a word of it: fails above 30 seconds, or
if the answer does not change. It needs Playwright and a Chromium.
"""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import ROOT, chromium

SITE = ROOT / "build" / "site" / "index.html"
MAX_SECONDS = 30
QUESTION, WORD = "What does `str.split` do?", "split"


def minute(tab: object) -> tuple[str, str]:
    """Return the answer, and the one without the word."""
    page = tab.frame_locator("iframe[src*='shared/model']")  # type: ignore[attr-defined]
    page.locator(".prompt").fill(QUESTION)
    page.locator(".prompt").press("Enter")
    page.locator(".words [data-kind=answer]").first.wait_for()
    page.locator(".stop:disabled").wait_for()
    page.locator(".words [data-kind=prompt]", has_text=WORD).click()
    page.locator(f".wipe:enabled:has-text('{WORD}')").click()
    page.locator(".wipe:enabled").wait_for()
    original, without = (
        page.locator(f".{side}").text_content() for side in ("original", "without")
    )
    return original, without


def main() -> None:
    with chromium() as browser:
        start = time.perf_counter()
        tab = browser.new_page()
        tab.goto(SITE.as_uri())
        answer, other = minute(tab)
        seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s at a load of {os.getloadavg()[0]:.1f}: {answer!r}, without: {other!r}")
    if answer == other or seconds > MAX_SECONDS:
        sys.exit(1)


if __name__ == "__main__":
    main()
