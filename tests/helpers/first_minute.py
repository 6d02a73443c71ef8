"""A new user's first minute: from the tour to a word that is forgotten, and what changed."""

import time

from helpers.browser import PATIENCE_MS

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


class FirstMinute:
    """A visitor who was never here, by mouse alone."""

    def __init__(self, page, look=lambda *_: None):
        self.page, self.tab, self.look = page, page.tab, look
        self.clicks = 0

    def skip_the_tour(self):
        self._click(self.tab.get_by_role("dialog").get_by_role("button", name="Skip"))

    def ask(self):
        """Send one of the examples, and wait for the end of the answer."""
        self._click(self.tab.get_by_role("button", name=QUESTION).first)
        self._until(ANSWERED)

    def forget(self):
        """Take a word of the question out of the state."""
        self._click_at(self.tab.evaluate(PLACE, WORD))
        self._until(CAN_FORGET)
        self._click(self.tab.locator("#words-forget"))
        self._until(FORGOTTEN)
        result = self.tab.locator("#words-result")
        marked = [" ".join(result.locator(tag).all_inner_texts()) for tag in ("del", "ins")]
        return self.tab.evaluate(NOTE), *marked

    def _click(self, button):
        button.scroll_into_view_if_needed()
        self._click_at(button.bounding_box())

    def _click_at(self, box):
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.look(x, y)
        self.tab.mouse.click(x, y)
        self.clicks += 1

    def _until(self, condition):
        end = time.monotonic() + PATIENCE_MS / 1000
        while not self.tab.evaluate(condition):
            assert time.monotonic() < end, condition
            self.look()
            self.tab.wait_for_timeout(50)
