"""The real app on small models that never end by themselves, and a headless Chromium."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import pytest
from helpers.models import chat_tokenizer

import mlx_gateloop as gl
from mlx_gateloop.tokenizer import stop_token_ids

ROOT = Path(__file__).parents[3]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TOKENS = 96  # of an answer, unless a test asks for more
LAYERS, CHANNELS = 4, 48
# Gradio's page sends these two without an event's id if it cancels before it was given one.
EARLY_CANCEL = ("gradio_api/cancel", "gradio_api/reset")
HALF = 0xE2  # the first byte of a character of three
# Says whom a process asks that is not this machine; the app itself is then run as `python -m app`.
# It hears of what goes through Python's sockets, so the event loop must not be uvloop's.
WATCH = """
import sys
sys.modules["uvloop"] = None
def outside(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        address = arguments[0] if event.startswith("socket.get") else arguments[1]
        host = address[0] if isinstance(address, tuple) else address  # a string: a Unix socket
        if host not in ("127.0.0.1", "::1", "localhost", None, ""):
            print("asked outside:", event, address, file=sys.stderr, flush=True)
sys.addaudithook(outside)
"""
RUN_APP = "import runpy\nrunpy.run_module('app', run_name='__main__', alter_sys=True)\n"


@pytest.fixture(scope="session")
def endless_models(tmp_path_factory):
    """Models that never write a token that ends an answer.

    "a" and "b" are small, "slow" is some 20 times as large, and "half" ends within a character.
    """
    folder, tokenizer = tmp_path_factory.mktemp("endless"), chat_tokenizer()
    half = tokenizer.encode(bytes([HALF, 0x80, 0x80]).decode())[0]
    for seed, name in enumerate(("a", "b", "half", "slow")):
        mx.random.seed(seed)
        channels, layers = (384, 12) if name == "slow" else (CHANNELS, LAYERS)
        model = gl.Model(
            gl.ModelArgs(
                vocab_size=len(tokenizer),
                hidden_size=channels,
                intermediate_size=channels,
                num_hidden_layers=layers,
                transition="fixed" if name == "b" else "data_controlled",
            )
        )
        bias = mx.zeros(len(tokenizer))
        bias = bias.at[mx.array(stop_token_ids(tokenizer))].add(-1e9)
        model.lm_head.bias = bias.at[half].add(1e9) if name == "half" else bias
        gl.save(model, tokenizer, folder / name)
    return folder


class Server:
    """`python -m app` on a free port, with what it printed, and whom it asked outside."""

    watch = WATCH

    def __init__(self, log, *arguments):
        self.log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-c", WATCH + RUN_APP, "--port", str(port)]
        command += map(str, arguments)
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + 120
        while not (found := re.search(r"http://\S+:\d+", log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.process.wait()
                pytest.fail(f"the server did not start: {log.read_text()}")
            time.sleep(0.1)
        self.url = found[0] + "/"

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        assert code == 130, self.log.read_text()
        for problem in ("Traceback", "asked outside"):
            assert problem not in self.log.read_text(), self.log.read_text()


@pytest.fixture(scope="session")
def start_server(endless_models, tmp_path_factory):
    """Starts servers on the endless models; all are stopped at the end."""
    servers = []

    def start(*arguments):
        folder = tmp_path_factory.mktemp("server")
        models = ("--models", endless_models, "--model", "a", "--conversations", folder / "kept")
        servers.append(Server(folder / "log", *models, *arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server):
    return start_server()


@pytest.fixture(scope="module")  # Playwright keeps an event loop running as long
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Page:
    """A visitor's tab, and what went wrong in it."""

    layers, channels, tokens = LAYERS, CHANNELS, TOKENS

    def __init__(self, context, url):
        self.tab, self.problems, self.url = context.new_page(), [], url
        self.early = [url + path for path in EARLY_CANCEL]
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", self._heard)
        self.tab.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        self.tab.on("request", self._asked)
        self.open()

    def open(self):
        self.tab.goto(self.url)
        self.ready()

    def ready(self):
        self.tab.wait_for_function("document.querySelector('#chat-view .gl')?.view")
        self.tab.wait_for_selector("#settings .toggle-button", state="attached")

    def reload(self):
        """Gradio reports its own broken connections while the old page goes; they are not ours."""
        before = list(self.problems)
        self.open()
        self.problems = before

    def _heard(self, message):
        early = "status of 422" in message.text and message.location["url"] in self.early
        if message.type == "error" and not early:
            self.problems.append(message.text)

    def _asked(self, request):
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"outside: {request.url}")

    def view(self, what, name="chat"):
        return self.tab.evaluate(f"document.querySelector('#{name}-view .gl').view.{what}")

    def settings(self):
        """Open or close them."""
        self.tab.evaluate("document.querySelector('#settings .toggle-button').click()")

    def set_tokens(self, count):
        self.settings()
        field = self.tab.locator("#max-tokens input[type=number]")
        field.fill(str(count))
        field.press("Tab")
        self.settings()

    def choose(self, model):
        self.tab.locator("#model input").click()
        self.tab.get_by_role("option", name=model, exact=True).click()

    def go_to(self, tab, view):
        if not self.tab.get_by_role("tab", name=tab).count():  # a phone has it in a menu
            self.tab.get_by_label("More tabs").click()
        self.tab.get_by_role("button", name=tab, exact=True).or_(
            self.tab.get_by_role("tab", name=tab)
        ).click()
        self.tab.wait_for_function(f"document.querySelector('#{view}-view .gl')?.view")

    def said(self, who="user"):
        """What the chat shows of the visitor ("user") or of the model ("bot")."""
        test_id = f"document.querySelectorAll('#chat [data-testid={who}]')"
        return self.tab.evaluate(
            f"[...{test_id}].map(e => e.textContent.replace(/^\\n|\\n$/g, ''))"
        )

    def shows(self, messages):
        """Wait until the chat shows so many of the visitor's messages."""
        users = "document.querySelectorAll('#chat [data-testid=user]').length"
        self.tab.wait_for_function(f"n => {users} === n", arg=messages)

    def read(self):
        """How many tokens of the conversation were read for the last answer, and are in it."""
        figures = self.tab.locator("#chat-status b").all_inner_texts()
        now, _, whole, _ = next(text for text in figures if " of " in text).split()
        return int(now.replace(",", "")), int(whole.replace(",", ""))

    def ask(self, text, name="chat", view=None):
        """Send a prompt and wait until its run is in the view."""
        view = view or name
        before = self.view("run", view)
        box = self.tab.locator(f"#{name}-box textarea")
        box.fill(text)
        box.press("Shift+Enter" if name == "complete" else "Enter")
        self.begun(before, view)

    def begun(self, before, name="chat"):
        view = f"document.querySelector('#{name}-view .gl').view"
        self.tab.wait_for_function(f"o => {view}.run && {view}.run !== o", arg=before)

    def finished(self, name="chat"):
        view = f"document.querySelector('#{name}-view .gl').view"
        self.tab.wait_for_function(
            f"{view}.done && {view}.have > 0 && {view}.have === {view}.pieces.length"
        )
        status = f"document.querySelector('#{name}-status').innerText"
        self.tab.wait_for_function(f"/done|stopped/.test({status})")
        self.tab.wait_for_timeout(200)  # until Gradio takes the next message
        return self.view("pieces.length", name)


@pytest.fixture
def new_page(browser, server):
    """Opens tabs of separate visitors; at the end none may have had a problem."""
    pages = []

    def open(url=server.url, context=None, **options):
        if context is None:
            options = {"viewport": {"width": 1280, "height": 900}, **options}
            context = browser.new_context(**options)
            context.set_default_timeout(60_000)
        pages.append(Page(context, url))
        return pages[-1]

    yield open
    for page in pages:
        page.tab.context.close()
        assert not page.problems


@pytest.fixture
def page(new_page):
    page = new_page()
    page.set_tokens(TOKENS)
    return page
