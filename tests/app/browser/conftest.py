"""The real app on small models that never end an answer, and a headless Chromium."""

import numpy as np
import pytest
from helpers.browser import CHROMIUM, ROOT, Page, Server, chromium, new_context
from helpers.models import chat_tokenizer, never_end, tiny_model
from helpers.recurrent import save_recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.tokenizer import CHAT_TEMPLATE, train_tokenizer

LAYERS, CHANNELS = 4, 48
WIDE, SECONDS = 384, 0.04  # of the slow model: its channels, and the seconds a token
# Reports connections of a process to other machines. It sees those of Python's sockets only, so the
# event loop must not be uvloop's.
WATCH = """
import sys
sys.modules["uvloop"] = None
def outside(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        address = arguments[:1] if event.startswith("socket.get") else arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a Unix socket: this machine
        if host not in ("127.0.0.1", "::1", "localhost", None, ""):
            print("asked outside:", event, address, file=sys.stderr, flush=True)
sys.addaudithook(outside)
"""
# A token of the wide model takes the same time on every machine, so that tests can act meanwhile;
# a late one takes so long that no answer ends before a test of a busy machine stops it.
PACED = f"""
import time
from mlx_gateloop import Model
call = Model.__call__
def paced(model, inputs, *arguments, **keywords):
    if model.args.hidden_size == {WIDE}:
        paced.tokens = 0 if inputs.shape[1] > 1 else paced.tokens + 1
        time.sleep({SECONDS} if paced.tokens < 300 else 1)
    return call(model, inputs, *arguments, **keywords)
paced.tokens = 0
Model.__call__ = paced
"""
# Optimizing the page's code takes longer than running it as it is.
PLAIN_CODE = "--js-flags=--no-maglev --no-turbofan"
# Controls of the views as they are in a new page.
DEFAULTS = """() => {
  const set = (control, value, event) => {
    if (control.value === value) return;
    control.value = value;
    control.dispatchEvent(new Event(event));
  };
  for (const view of document.querySelectorAll('.gl')) {
    set(view.querySelector('.layer'), '0', 'change');
    set(view.querySelector('.order'), 'natural', 'change');
    set(view.querySelector('.zoom'), '0', 'input');
    view.querySelector('.scroll').scrollLeft = 0;
  }
  const { view } = document.querySelector('#chat-view .gl');
  view.select(view.pieces.length - 1);
  view.point(null);
  for (const toast of document.querySelectorAll('[data-testid=toast-close]')) toast.click();
}"""
TOKENS = 64  # per answer, unless a test asks for more
SEED = "#seed input"


class Visitor(Page):
    """A user of the small models."""

    layers, channels, tokens = LAYERS, CHANNELS, TOKENS
    shared = None  # the run that tests look at, one after another

    def __init__(self, context, url):
        super().__init__(context, url)
        self.set_tokens(TOKENS)

    def new_chat(self):
        """Return to an empty chat and the first settings; loading the page takes seconds."""
        self.defaults()
        self.go_to("Chat", "chat")
        self.tab.locator("#clear").click()
        self.tab.wait_for_function("!document.querySelector('#chat-view .gl').view.run")
        self.shows(0)
        self.tab.locator("#chat-box textarea").fill("")
        self.set_tokens(TOKENS)
        self.set(SEED, -1)
        if self.tab.locator("#model input").input_value() != "a":
            self.choose("a")
        self.settled()

    def defaults(self):
        """Set the controls of the views as they are in a new page."""
        self.tab.set_viewport_size({"width": 1280, "height": 900})
        self.tab.mouse.move(0, 0)
        self.tab.evaluate(DEFAULTS)

    def look(self):
        """Show a finished answer to look at, the same one as before if it is still there."""
        if self.shared is None or self.view("run") != self.shared:
            self.new_chat()
            self.answer("What does a state keep?")
            self.shared = self.view("run")
        self.defaults()
        self.painted()

    def list(self):
        self.tab.locator("#list-button").click()

    def take(self, file):
        with self.tab.expect_file_chooser() as chooser:
            self.tab.locator("#import").click()
        chooser.value.set_files(file)

    def answer(self, text, *where):
        """Send a message and wait for the end of its answer; returns the tokens in the view."""
        self.ask(text, *where)
        tokens = self.finished(*where[-1:])
        self.painted()
        return tokens

    def chosen(self):
        """The number of the token that is selected in the view's text."""
        return int(self.tab.locator("#chat-view .text .selected").get_attribute("data-token"))


@pytest.fixture(scope="session")
def endless_models(tmp_path_factory):
    """Models that never write a token that ends an answer; "slow" waits before each token.

    "falcon" and "llama" are of these types of mlx-lm, and may end.
    """
    folder, tokenizer = tmp_path_factory.mktemp("endless"), chat_tokenizer()
    for seed, name in enumerate(("a", "b", "slow")):
        channels = WIDE if name == "slow" else CHANNELS
        model = tiny_model(
            seed, vocab_size=len(tokenizer), hidden_size=channels, intermediate_size=channels,
            num_hidden_layers=LAYERS, transition="fixed" if name == "b" else "data_controlled",
        )  # fmt: skip
        never_end(model, tokenizer)
        gl.save(model, tokenizer, folder / name)
        if name == "a":
            state = gl.State(model.make_cache())
            state.read(model, [7, 8, 9])
            gl.write_state(folder / "calm.state", gl.State(state.cache), *gl.load(folder / name))
    # Pieces of a text that stays as it is: a random model's answers depend on every word.
    pieces = train_tokenizer([(ROOT / "LICENSE").read_text("utf-8")], 400)
    pieces.chat_template = CHAT_TEMPLATE
    sizes = {"lm_head_multiplier": 5.0}  # with the type's own, all tokens are as likely
    save_recurrent_model(folder / "falcon", "falcon_h1", tokenizer=pieces, **sizes)
    save_recurrent_model(folder / "llama", "llama")
    return folder


@pytest.fixture(scope="session")
def server(endless_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    models = ("--models", endless_models, "--model", "a", "--conversations", folder / "kept")
    server = Server(folder / "log", *models, prelude=WATCH + PACED)
    yield server
    code, log = server.stop(), server.log.read_text()
    assert code == 130, log
    for problem in ("Traceback", "asked outside"):
        assert problem not in log, log


@pytest.fixture(scope="package")  # Playwright keeps an event loop running as long
def browser():
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with chromium(PLAIN_CODE) as browser:
        yield browser


@pytest.fixture
def new_page(browser, server):
    """Opens tabs of other users; at the end none may have had a problem."""
    pages, contexts = [], []

    def open(url=server.url, context=None, **options):
        if context is None:
            context = new_context(browser, **options)
            contexts.append(context)
        pages.append(Visitor(context, url))
        return pages[-1]

    yield open
    for opened in (*pages, *contexts):
        (opened.tab if isinstance(opened, Page) else opened).close()
    assert not [problem for page in pages for problem in page.problems]


@pytest.fixture(scope="package")
def shared_tab(browser, server):
    return Visitor(new_context(browser), server.url)


@pytest.fixture
def tab(shared_tab, request):
    """The tab of most tests; a test that failed may have left anything in it."""
    if request.session.testsfailed != getattr(shared_tab, "failures", 0):
        shared_tab.failures = request.session.testsfailed
        shared_tab.reload()
    yield shared_tab
    shared_tab.tab.unroute_all(behavior="ignoreErrors")
    problems, shared_tab.problems = shared_tab.problems, []
    assert not problems


@pytest.fixture
def page(tab):
    tab.new_chat()
    return tab


@pytest.fixture
def answered(tab):
    """A finished answer, which tests only look at."""
    tab.look()
    return tab


@pytest.fixture
def seeded(page):
    """A page whose answers are the same every time: others differ in length, and may be empty."""
    page.set(SEED, 7)
    return page


@pytest.fixture
def download(tmp_path):
    """Clicks "png", "npz" or "save-page"; returns the file."""

    def click(page, kind):
        with page.tab.expect_download() as download:
            page.tab.locator(f"#chat-view .{kind}").click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        return file

    return click


@pytest.fixture
def arrays(download):
    def load(page):
        with np.load(download(page, "npz")) as file:
            return dict(file)

    return load
