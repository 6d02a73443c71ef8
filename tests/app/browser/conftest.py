"""The real app on small models that never end by themselves, and a headless Chromium."""

import numpy as np
import pytest
from helpers.browser import CHROMIUM, ROOT, Page, Server, chromium, new_context
from helpers.models import chat_tokenizer, never_end, tiny_model
from helpers.recurrent import save_recurrent_model

import mlx_gateloop as gl
from mlx_gateloop.tokenizer import CHAT_TEMPLATE, train_tokenizer

LAYERS, CHANNELS = 4, 48
HALF = 0xE2  # the first byte of a character of three
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


# A page lives a second here: optimizing its code takes longer than running it as it is.
PLAIN_CODE = "--js-flags=--no-maglev --no-turbofan"


class Visitor(Page):
    """A visitor of the small models."""

    layers, channels = LAYERS, CHANNELS
    tokens = 96  # of an answer, unless a test asks for more

    def open_saved(self):
        """Open the conversation that was saved or chosen last."""
        self.settings()
        self.tab.locator("#open").click()
        self.settings()

    def save(self, name):
        self.settings()
        if not self.tab.locator("#save-name").is_visible():
            self.tab.get_by_text("Saved conversations").click()
        self.tab.locator("#save-name textarea, #save-name input").fill(name)
        self.tab.locator("#save").click()
        saved = "n => document.querySelector('#saved input').value === n"
        self.tab.wait_for_function(saved, arg=name)
        self.tab.get_by_text(f"messages as '{name}' in kept.").wait_for()
        self.settings()


@pytest.fixture(scope="session")
def endless_models(tmp_path_factory):
    """Models that never write a token that ends an answer.

    "a" and "b" are small, "slow" is some 20 times as large, and "half" ends within a character.
    "falcon" and "llama" are of these types of mlx-lm, and may end.
    """
    folder, tokenizer = tmp_path_factory.mktemp("endless"), chat_tokenizer()
    half = tokenizer.encode(bytes([HALF, 0x80, 0x80]).decode())[0]
    for seed, name in enumerate(("a", "b", "half", "slow")):
        channels, layers = (384, 12) if name == "slow" else (CHANNELS, LAYERS)
        model = tiny_model(
            seed,
            vocab_size=len(tokenizer),
            hidden_size=channels,
            intermediate_size=channels,
            num_hidden_layers=layers,
            transition="fixed" if name == "b" else "data_controlled",
        )
        never_end(model, tokenizer)
        if name == "half":
            model.lm_head.bias = model.lm_head.bias.at[half].add(1e9)
        gl.save(model, tokenizer, folder / name)
    sizes = {"lm_head_multiplier": 5.0}  # with the type's own, all tokens are as likely
    save_recurrent_model(folder / "falcon", "falcon_h1", tokenizer=trained_tokenizer(), **sizes)
    save_recurrent_model(folder / "llama", "llama")
    return folder


def trained_tokenizer():
    """A tokenizer of pieces with a chat template, of a text that stays as it is.

    Answers of a random model depend on every word of it.
    """
    tokenizer = train_tokenizer([(ROOT / "LICENSE").read_text("utf-8")], 400)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def start_server(endless_models, tmp_path_factory):
    """Starts servers on the endless models; all are stopped at the end."""
    servers = []

    def start(*arguments):
        folder = tmp_path_factory.mktemp("server")
        models = ("--models", endless_models, "--model", "a", "--conversations", folder / "kept")
        servers.append(Server(folder / "log", *models, *arguments, prelude=WATCH))
        return servers[-1]

    yield start
    codes = [server.stop() for server in servers]  # all of them, before one may fail
    for code, server in zip(codes, servers, strict=True):
        log = server.log.read_text()
        assert code == 130, log
        for problem in ("Traceback", "asked outside"):
            assert problem not in log, log


@pytest.fixture(scope="session")
def server(start_server):
    return start_server()


@pytest.fixture(scope="package")  # Playwright keeps an event loop running as long
def browser():
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with chromium(PLAIN_CODE) as browser:
        yield browser


@pytest.fixture
def new_page(browser, server):
    """Opens tabs of separate visitors; at the end none may have had a problem."""
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
def tab(browser, server):
    return Visitor(new_context(browser), server.url)


@pytest.fixture
def page(tab):
    """A new visitor, in the tab of all tests: a new tab would load and compile the page again."""
    tab.open()
    tab.set_tokens(tab.tokens)
    yield tab
    tab.tab.unroute_all(behavior="ignoreErrors")
    tab.leave()  # or a long answer would go on beside the tests that have pages of their own
    problems, tab.problems = tab.problems, []
    assert not problems


@pytest.fixture
def seeded(page):
    """A page whose answers are the same every time: others differ in length, and may be empty."""
    page.set("#seed input", 7)
    yield page
    page.set("#seed input", -1)


@pytest.fixture
def download(tmp_path):
    """Clicks "png" or "npz", and returns the file and its address."""

    def click(page, kind):
        with page.tab.expect_download() as download:
            page.tab.locator(f"#chat-view .{kind}").click()
        name = download.value.suggested_filename
        assert name.endswith(f".{kind}")
        download.value.save_as(tmp_path / name)
        return tmp_path / name, download.value.url

    return click


@pytest.fixture
def arrays(download):
    """The transitions of a page's run, as it downloads them."""

    def load(page):
        with np.load(download(page, "npz")[0]) as file:
            return dict(file)

    return load
