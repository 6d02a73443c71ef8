"""A new user's first minute with the app, timed and recorded: `python docs/first_minute.py`.

From the start of the app to a word that is forgotten: fails above 60 seconds or four clicks. It
needs Playwright (`pip install playwright`) and a Chromium.
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import PATIENCE_MS, ROOT, Page, chromium, new_context, served

OUT = ROOT / "docs" / "images" / "first-minute.webp"
MAX_SECONDS, MAX_CLICKS = 60, 4
SIZE = {"width": 1200, "height": 900}
FRAME_MS, READ_MS, SHOWN_WIDTH = 150, 2000, 960
QUESTION, WORD = "What does `str.split` do?", "split"
ANSWERED = "/^Click a word/.test(document.querySelector('.gw .status').innerText)"
CAN_FORGET = "document.querySelector('#words-forget')?.checkVisibility()"
NOTE = "document.querySelector('#words-result .note').innerText"
FORGOTTEN = f"/^(What|Nothing) changed/.test({NOTE})"

# A word in the visitor's last message, which is scrolled into sight.
PLACE = """(word) => {
  const said = [...document.querySelectorAll('#chat [data-testid=user]')].at(-1);
  said.scrollIntoView({ block: 'center' });
  const texts = document.createTreeWalker(said, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const at = texts.currentNode.data.indexOf(word), range = new Range();
    if (at < 0) continue;
    range.setStart(texts.currentNode, at);
    range.setEnd(texts.currentNode, at + word.length);
    const { x, y, width, height } = range.getBoundingClientRect();
    return { x, y, width, height };
  }
}"""
# A ring where the mouse clicks, above the tour too.
RING = """([x, y]) => {
  const ring = document.createElement('div');
  ring.popover = 'manual';
  ring.style = `position:fixed;inset:auto;left:${x - 18}px;top:${y - 18}px;margin:0;width:36px;` +
    'height:36px;border:4px solid #e75263;border-radius:50%;background:none;pointer-events:none';
  document.body.append(ring);
  ring.showPopover();
  return ring;
}"""


class FirstMinute:
    """A visitor who was never here, by mouse alone.

    Args:
        page: The tab.
        look: Called while the visitor waits, and with the point before a click.
    """

    def __init__(self, page: Page, look: Callable[..., None] = lambda *_: None) -> None:
        self.page, self.tab, self.look = page, page.tab, look
        self.clicks = 0

    def skip_the_tour(self) -> None:
        self._click(self.tab.get_by_role("dialog").get_by_role("button", name="Skip"))

    def ask(self) -> None:
        """Send one of the examples, and wait for the end of the answer."""
        self._click(self.tab.get_by_role("button", name=QUESTION).first)
        self._until(ANSWERED)

    def forget(self) -> tuple[str, str, str]:
        """Take a word of the question out of the state."""
        self._click_at(self.tab.evaluate(PLACE, WORD))
        self._until(CAN_FORGET)
        self._click(self.tab.locator("#words-forget"))
        self._until(FORGOTTEN)
        result = self.tab.locator("#words-result")
        marked = [" ".join(result.locator(tag).all_inner_texts()) for tag in ("del", "ins")]
        return self.tab.evaluate(NOTE), *marked

    def _click(self, button: Any) -> None:
        button.scroll_into_view_if_needed()
        self._click_at(button.bounding_box())

    def _click_at(self, box: dict[str, float]) -> None:
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.look(x, y)
        self.tab.mouse.click(x, y)
        self.clicks += 1

    def _until(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE_MS / 1000
        while not self.tab.evaluate(condition):
            assert time.monotonic() < end, condition
            self.look()
            self.tab.wait_for_timeout(50)


class Film:
    """Pictures of a tab as an animation.

    Args:
        page: The tab.
    """

    def __init__(self, page: Page) -> None:
        self.tab = page.tab
        self.frames: list[Image.Image] = []
        self.lasts: list[int] = []

    def __call__(self, *point: float) -> None:
        """Take a picture; before a click, with a ring at `point`."""
        self.take(READ_MS if point else FRAME_MS)
        if point:
            ring = self.tab.evaluate_handle(RING, list(point))
            self.take(700)
            ring.evaluate("(e) => e.remove()")

    def take(self, lasts: int) -> None:
        with Image.open(io.BytesIO(self.tab.screenshot())) as picture:
            height = round(picture.height * SHOWN_WIDTH / picture.width)
            self.frames.append(picture.convert("RGB").resize((SHOWN_WIDTH, height)))
        self.lasts.append(lasts)

    def save(self, path: Path) -> None:
        first, *others = self.frames
        options = {"append_images": others, "duration": self.lasts, "loop": 0, "quality": 75}
        first.save(path, save_all=True, kmax=1, **options)  # each frame whole


def minute(film: bool) -> tuple[float, int]:
    """Live through the first minute; returns its seconds and clicks."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log, saved = Path(folder) / "log", Path(folder) / "saved"
        with served(log, "--conversations", saved) as server, chromium() as browser:
            page = Page(new_context(browser, returning=False, viewport=SIZE), server.url)
            camera = Film(page)
            visitor = FirstMinute(page, camera) if film else FirstMinute(page)
            visitor.skip_the_tour()
            visitor.ask()
            message, before, after = visitor.forget()
            seconds = time.monotonic() - began
            if film:
                camera.take(5000)
                camera.save(OUT)
                shown = sum(camera.lasts) / 1000
                print(f"{OUT.relative_to(ROOT)}: {shown:.0f} s, {OUT.stat().st_size / 1e6:.2f} MB")
    print(f"{seconds:.1f} s and {visitor.clicks} clicks; {message}")
    print(f"without the word: {after!r} instead of {before!r}")
    return seconds, visitor.clicks


def main() -> int:
    seconds, clicks = minute(film=False)
    minute(film=True)
    return seconds > MAX_SECONDS or clicks > MAX_CLICKS


if __name__ == "__main__":
    sys.exit(main())
