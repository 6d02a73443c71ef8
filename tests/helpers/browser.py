"""The app as a process, a headless Chromium and a tab: for tests, benchmarks and pictures."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from mlx_gateloop.distributed.hosts import free_ports

ROOT = Path(__file__).parents[2]
# The shell is the same engine without the browser's own window, which costs a second a visitor.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
START_SECONDS = 180
STOP_SECONDS = 120
PATIENCE_MS = 120_000  # a tab's longest wait
RETRY_MS = 2000  # a busy machine empties the box late, and a second Enter sends nothing
RETURNING = "if (location.protocol === 'http:') localStorage.setItem('gateloop.tour', 'seen')"
RUN_APP = "import runpy\nrunpy.run_module('app', run_name='__main__', alter_sys=True)\n"
QUESTIONS = re.compile("/component_server")  # from the state views
MOVING = "document.getAnimations().filter(({ playState }) => playState === 'running')"
# Gradio's page sends these two without an event's id if it cancels before it was given one.
EARLY_CANCEL = ("gradio_api/cancel", "gradio_api/reset")


class Server:
    """`python -m app` on a free port."""

    def __init__(self, log, *arguments, prelude=""):
        self.log = log
        command = [sys.executable, "-c", prelude + RUN_APP, "--port", str(free_ports(1))]
        command += map(str, arguments)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"http://\S+:\d+", log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.process.wait()
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        self.url = found[0] + "/"

    def stop(self):
        """Interrupt it; returns its exit code, negative if it had to be killed."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextmanager
def served(log, *arguments, prelude=""):
    server = Server(log, *arguments, prelude=prelude)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def chromium(*flags):
    """Run a headless Chromium of the system within a block; yields Playwright's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
        yield browser
        browser.close()


def new_context(browser, returning=True, **options):
    """Open a window with cookies and a cache of its own."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_MS)
    if returning:
        context.add_init_script(RETURNING)
    return context


def view(name="chat"):
    return f"document.querySelector('#{name}-view .gl').view"


def has(tokens):
    return f"{view()}.have >= {tokens}"


class Page:
    """A visitor's tab, and the problems in it."""

    def __init__(self, context, url):
        self.tab, self.url = context.new_page(), url
        self.problems: list[str] = []
        self._early = [url + path for path in EARLY_CANCEL]
        self._events = False  # Gradio's, of which it has not read the end
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", self._heard)
        self.tab.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        self.tab.on("request", self._asked)
        for end in ("requestfinished", "requestfailed"):
            self.tab.on(end, self._ended)
        self.open()

    def open(self):
        self.tab.goto(self.url)
        self.has_view()
        self.tab.wait_for_selector("#settings .toggle-button", state="attached")

    def reload(self):
        """Open it again, as a new visitor."""
        self.tab.evaluate("() => { sessionStorage.clear(); localStorage.clear(); }")
        self.reopen()

    def reopen(self):
        """Open it again; broken connections that Gradio reports meanwhile do not count."""
        before = list(self.problems)
        self.open()
        self.problems = before

    def _heard(self, message):
        early = "status of 422" in message.text and message.location["url"] in self._early
        if message.type == "error" and not early:
            self.problems.append(f"{message.text} {message.location['url']}")

    def _asked(self, request):
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"outside: {request.url}")
        self._events = self._events or "/queue/join" in request.url

    def _ended(self, request):
        if "/queue/data" in request.url:
            self._events = False

    def settled(self):
        """Wait until Gradio has read the end of all it was asked for, and has shown it."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while self._events:
            assert time.monotonic() < end, "Gradio did not read the end of what it was asked for"
            self.tab.wait_for_timeout(10)
        self.painted()

    def has_view(self, name="chat"):
        self.tab.wait_for_function(f"document.querySelector('#{name}-view .gl')?.view")

    def view(self, what, name="chat"):
        return self.tab.evaluate(f"{view(name)}.{what}")

    def painted(self):
        """Wait until all that has come is painted: drawing takes the next frame."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.tab.evaluate(f"() => {frame}")

    def still(self):
        """Wait until nothing moves and no colour changes."""
        self.tab.wait_for_function(f"{MOVING}.length === 0")

    def settings(self):
        self.tab.evaluate("document.querySelector('#settings .toggle-button').click()")

    def set(self, field, value):
        """Fill in one of the settings, such as "#seed input", unless it is so already."""
        box = self.tab.locator(field)
        if box.input_value() != str(value):  # opening them takes a while
            self.settings()
            box.fill(str(value))
            box.press("Tab")
            self.settings()

    def set_tokens(self, count):
        self.set("#max-tokens input[type=number]", count)

    def choose(self, model, about=""):
        """Choose a model, and wait until its description has these words."""
        self.tab.locator("#model input").click()
        self.tab.get_by_role("option", name=model, exact=True).click()
        self.tab.locator("#model-about", has_text=about).wait_for(state="attached")

    def go_to(self, tab, view):
        if not self.tab.get_by_role("tab", name=tab).count():  # a phone has it in a menu
            self.tab.get_by_label("More tabs").click()
        self.tab.get_by_role("button", name=tab, exact=True).or_(
            self.tab.get_by_role("tab", name=tab)
        ).click()
        self.has_view(view)

    def messages(self, who="user"):
        """Texts of the chat by the visitor ("user") or the model ("bot")."""
        texts = self.tab.locator(f"#chat [data-testid={who}]").all_text_contents()
        return [re.sub(r"^\n|\n\Z", "", text) for text in texts]

    def shows(self, messages):
        users = "document.querySelectorAll('#chat [data-testid=user]').length"
        self.tab.wait_for_function(f"n => {users} === n", arg=messages)

    def ask(self, text, name="chat", view=None):
        """Send a prompt and wait until its run is in the view."""
        from playwright.sync_api import TimeoutError as TooLate

        before = self.view("run", view or name)
        box = self.tab.locator(f"#{name}-box textarea")
        box.fill(text)
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:  # Gradio takes no message while it puts the end of an answer away
            if box.input_value() == text:
                box.press("Shift+Enter" if name == "complete" else "Enter")
            try:
                return self.begun(before, view or name, RETRY_MS)
            except TooLate:
                if time.monotonic() > end:
                    raise

    def begun(self, before, name="chat", timeout=PATIENCE_MS):
        run = f"{view(name)}.run"
        self.tab.wait_for_function(f"o => {run} && {run} !== o", arg=before, timeout=timeout)

    def finished(self, name="chat"):
        """Wait for the end of the answer; returns the number of tokens in the view."""
        from playwright.sync_api import expect

        state = view(name)
        self.tab.wait_for_function(
            f"{state}.recording.done && {state}.have > 0 && {state}.have === {state}.pieces.length"
        )
        status = expect(self.tab.locator(f"#{name}-status"))  # which shows the text if it fails
        status.to_have_text(re.compile("done|stopped"), timeout=PATIENCE_MS)
        self.settled()
        return self.view("pieces.length", name)


def request(url, **options):
    """The answer to a request, whatever its status; `body` is its content."""
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, **options), timeout=120)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        answer.body = answer.read()
        return answer


def memory_mb(pid):
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) / 1024
