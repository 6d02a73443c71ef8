"""Random use of the app in two pages: python benchmarks/soak.py --minutes 30

Messages, stops, retries, layer and model switches, clicks and reloads, until the time or the number
of actions is over. Ends with 1 if a page or the server reported an error, if the queue is stuck at
the end, or if the server's memory grew by more than a quarter after the first quarter of the time.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from browser import VIEW, chromium, memory_mb, open_page, served
from playwright.sync_api import Page

QUESTIONS = ["What does `str.split` do?", "<b>${1}</b>", "x" * 500, "How do I sort a list?"]


class Visitor:
    """A page and what it may do at random."""

    def __init__(self, page: Page, random: random.Random) -> None:
        self.page, self.random, self.problems = page, random, []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.set_default_timeout(20_000)

    def act(self) -> None:
        """One action."""
        actions = [self.ask, self.ask, self.stop, self.layer, self.token, self.retry, self.clear]
        self.random.choice([*actions, self.model, self.reload])()

    def ask(self) -> None:
        self.page.locator("#chat-box textarea").fill(self.random.choice(QUESTIONS))
        self.page.locator("#chat-box textarea").press("Enter")

    def stop(self) -> None:
        self.page.locator("#chat-stop").click()

    def layer(self) -> None:
        layers = self.page.locator("#chat-view .layer option").count()
        self.page.select_option("#chat-view .layer", index=self.random.randrange(layers))

    def token(self) -> None:
        self.page.evaluate(
            "share => { const all = document.querySelectorAll('#chat-view .text span');"
            " all[Math.floor(share * all.length)]?.click() }",
            self.random.random(),
        )

    def retry(self) -> None:
        self.page.evaluate("document.querySelector('#chat [aria-label=Retry]:enabled')?.click()")

    def clear(self) -> None:
        self.page.locator("#clear").click()

    def model(self) -> None:
        self.page.locator("#model input").click()
        options = self.page.locator("[role=option]")
        options.first.wait_for()
        options.nth(self.random.randrange(options.count())).click()

    def reload(self) -> None:
        kept = list(self.problems)
        self.page.reload()
        self.page.wait_for_function("document.querySelector('#chat-view .gl')?.view")
        self.problems = kept  # Gradio reports its own broken connections

    def finish(self) -> None:
        """Everything still works."""
        self.stop()
        self.clear()
        self.page.wait_for_timeout(1000)
        self.page.locator("#chat-box textarea").fill("still there?")
        self.page.locator("#chat-box textarea").press("Enter")
        self.page.wait_for_function(f"{VIEW}.run && {VIEW}.done && {VIEW}.have > 0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--actions", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with served(log) as (url, pid), chromium() as browser:
            visitors = [Visitor(open_page(browser, url, 512), chance) for _ in range(2)]
            began, done, memory = time.monotonic(), 0, []
            while time.monotonic() - began < 60 * arguments.minutes and done < arguments.actions:
                chance.choice(visitors).act()
                time.sleep(chance.random() / 2)
                done += 1
                memory.append(memory_mb(pid))
            for visitor in visitors:
                visitor.finish()
            problems = [problem for visitor in visitors for problem in visitor.problems]
        if "Traceback" in log.read_text():
            problems.append(log.read_text()[-2000:])
    early, late = max(memory[: len(memory) // 4 + 1]), max(memory[-len(memory) // 4 :])
    print(f"{done} actions in {(time.monotonic() - began) / 60:.1f} minutes")
    print(f"server memory: {early:.0f} MB at most in the first quarter, {late:.0f} in the last")
    print(*(problems or ["no problems"]), sep="\n")
    return int(bool(problems) or late > 1.25 * early)


if __name__ == "__main__":
    sys.exit(main())
