"""Random use of the app in five tabs of one browser: `python benchmarks/soak.py --minutes 30`.

Every tab, saved conversations, edits, undo, retries, stops, reloads, layer and model switches, to
models that attack too, until the time is over. Ends with 1 if a page or the server reported an
error, if an answer does not end in a minute, if the app does not answer at the end, or if the
memory of the server in the last quarter of the time is a quarter above that in the second one.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from playwright.sync_api import Error

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import Page, chromium, memory_mb, new_context, served, view
from helpers.hostile import KINDS, SLOW_TEXT, save_hostile_model

QUESTIONS = [
    "What does `str.split` do?",
    "<b>${1}</b> & &amp;",
    "x" * 500,
    "How do I sort a list?",
    SLOW_TEXT,
]
TEXTS = ["str.split(sep=None, maxsplit=-1)\n", "The following example shows", "é" * 200]
TABS = 5
BOXES = ("chat", "complete", "compare")
MODEL = "demo"  # that ends well
STUCK_SECONDS = 60
# A run that waits or loads is not in its view yet, but in the status.
RUNNING = """() => ['chat', 'complete', 'left', 'right'].map(name =>
    [name, document.querySelector(`#${name}-status`), document.querySelector(`#${name}-view .gl`)])
  .filter(([, status]) => status && !/done|stopped|failed|ready/.test(status.textContent))
  .map(([name, , view]) => `${name} ${view?.view?.run ?? 'waits'}`)"""
CLICK = "selector => { const e = document.querySelector(selector); e?.click(); return Boolean(e) }"


class Visitor:
    """A page and its random actions; an action with nothing to act on is not counted."""

    def __init__(self, page: Page, random: random.Random, name: str) -> None:
        self.page, self.tab, self.random, self.name = page, page.tab, random, name
        self.problems = page.problems
        self.counts: Counter[str] = Counter()
        self.running: dict[str, float] = {}  # since when
        self.tab.set_default_timeout(20_000)
        self.actions: dict[str, tuple[int, Callable[[], bool | None]]] = {  # weights and actions
            "ask": (6, self.ask),
            "complete": (2, self.complete),
            "compare": (2, self.compare),
            "stop": (3, self.stop),
            "layer": (3, self.layer),
            "token": (3, lambda: self._one_of("#chat-view .text span")),
            "retry": (2, lambda: self._button("Retry")),
            "edit": (2, self.edit),
            "undo": (2, lambda: self._button("Undo")),
            "clear": (1, self.clear),
            "model": (1, self.model),
            "open": (1, lambda: self._one_of("#saved tbody tr")),  # all are saved by themselves
            "delete": (1, lambda: self._click("#delete:enabled")),
            "undelete": (1, lambda: self._click("#undelete:enabled")),
            "reload": (1, self.reload),
        }

    def act(self) -> None:
        """Take one action."""
        weights = [weight for weight, _ in self.actions.values()]
        name = self.random.choices([*self.actions], weights)[0]
        try:
            self.counts[name] += self.actions[name][1]() is not False
            self._look_for_stuck()
        except Error as error:  # Playwright's: what it waited for did not come
            self.problems.append(f"{name}: {str(error).splitlines()[0]}")

    def ask(self) -> None:
        self._send("Chat", "chat", self.random.choice(QUESTIONS), "Enter")

    def complete(self) -> None:
        self._send("Completion", "complete", self.random.choice(TEXTS), "Shift+Enter")

    def compare(self) -> None:
        self._send("Side by side", "compare", self.random.choice(QUESTIONS), "Enter")

    def stop(self) -> None:
        self._click(f"#{self.random.choice(BOXES)}-stop")

    def layer(self) -> bool:
        self._tab("Chat")
        if not self.tab.locator("#chat-view .layer").is_visible():  # before the first answer
            return False
        layers = self.tab.locator("#chat-view .layer option").count()
        self.tab.select_option("#chat-view .layer", index=self.random.randrange(layers))
        return True

    def edit(self) -> bool:
        if not self._button("Edit"):
            return False
        box = self.tab.locator("#chat textarea").first
        try:
            box.fill(self.random.choice(QUESTIONS), timeout=2_000)
        except Error:  # an answer continued meanwhile, and the chat was redrawn
            return False
        return self._button("Submit")

    def clear(self) -> None:
        self._click("#clear")

    def model(self) -> None:
        self.tab.locator("#model input").click()
        options = self.tab.locator("[role=option]")
        options.first.wait_for()
        options.nth(self.random.randrange(options.count())).click()

    def _one_of(self, selector: str) -> bool:
        return self.tab.evaluate(
            "([selector, share]) => { const all = document.querySelectorAll(selector),"
            " one = all[Math.floor(share * all.length)]; one?.click(); return Boolean(one) }",
            [selector, self.random.random()],
        )

    def reload(self) -> None:
        self.page.reload()
        self.problems = self.page.problems
        self.running.clear()

    def finish(self) -> None:
        """Check that everything still works."""
        try:
            for name in BOXES:
                self._click(f"#{name}-stop")
            self._tab("Chat")
            self.page.choose(MODEL)
            self.clear()
            self.tab.wait_for_timeout(2000)
            self.ask()
            self.tab.wait_for_function(f"{view()}.recording.done && {view()}.have > 0")
        except Error as error:
            self.problems.append(f"at the end: {str(error).splitlines()[0]}")

    def _send(self, tab: str, name: str, text: str, key: str) -> None:
        self._tab(tab)
        box = self.tab.locator(f"#{name}-box textarea")
        box.fill(text)
        box.press(key)

    def _tab(self, name: str) -> None:
        self.tab.get_by_role("tab", name=name).click()

    def _click(self, selector: str) -> bool:
        return bool(self.tab.evaluate(CLICK, selector))

    def _button(self, label: str) -> bool:
        return self._click(f"#chat [aria-label={label}]:enabled")

    def _look_for_stuck(self) -> None:
        now, found = time.monotonic(), self.tab.evaluate(RUNNING)
        self.running = {run: self.running.get(run, now) for run in found}
        for run, since in self.running.items():
            if now - since > STUCK_SECONDS:
                self.problems.append(f"{run} does not end")
                self.running[run] = now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        log, kept, hostile = (Path(folder) / name for name in ("log", "kept", "hostile"))
        for kind in KINDS:
            save_hostile_model(hostile / kind.replace(" ", "-"), kind)
        options = ("--models", hostile, "--model", MODEL, "--conversations", kept)
        with served(log, *options) as server, chromium() as browser:
            context = new_context(browser)
            pages = [Page(context, server.url) for _ in range(TABS)]
            for page in pages:
                page.set_tokens(512)
            visitors = [Visitor(page, chance, str(n)) for n, page in enumerate(pages, 1)]
            began, done, memory = time.monotonic(), 0, []
            while time.monotonic() - began < 60 * arguments.minutes:
                chance.choice(visitors).act()
                time.sleep(chance.random() / 2)
                done += 1
                memory.append(memory_mb(server.process.pid))
            minutes = (time.monotonic() - began) / 60
            for visitor in visitors:
                visitor.finish()
            saved = len(list(kept.glob("*")))
        problems = [f"{visitor.name}: {p}" for visitor in visitors for p in visitor.problems]
        if "Traceback" in log.read_text():
            problems.append(log.read_text()[-2000:])
    quarters = [memory[i * done // 4 : (i + 1) * done // 4] or memory for i in range(4)]
    usual = [median(quarter) for quarter in quarters]
    if usual[3] > 1.25 * usual[1]:
        problems.append("the server's memory grows")
    counts = sum((visitor.counts for visitor in visitors), Counter())
    print(f"{done} actions in {minutes:.1f} minutes, {saved} conversations saved")
    print(*(f"{name} {count}" for name, count in counts.most_common()), sep=", ")
    print("server memory by quarters:", ", ".join(f"{mb:.0f}" for mb in usual), "MB in the median")
    print(*(problems or ["no problems"]), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
