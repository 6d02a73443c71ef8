"""Things that the page and the server must not do."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from io import BytesIO

import numpy as np
import pytest
from gradio_client import Client
from helpers.browser import new_context
from mlx_gateloop.app.server import middleware

HOSTILE = [
    "<script>alert(1)</script>",
    "${alert(1)} {{value}} `${alert(2)}`",
    "![x](http://example.com/x.png) <img src=http://example.com/y.png onerror=alert(3)>",
]


def request(url, **options):
    """The answer, with its body in `body`."""
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, **options), timeout=120)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        answer.body = answer.read()
        return answer


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_shown(page, text):
    page.ask(text)
    page.finished()
    assert page.tab.locator("#chat [data-testid=user]").inner_text().strip() == text
    assert page.tab.locator("#chat img, #chat script, #chat-view script").count() == 0
    shown = page.tab.locator("#chat-view .text").evaluate("e => e.textContent")
    assert text in shown
    page.tab.locator("#chat-view .text span").nth(30).click()
    page.tab.wait_for_function("document.querySelector('#chat-view .gl').view.row")


def test_hostile_text_in_the_other_tabs(page):
    page.go_to("Completion", "complete")
    page.ask("".join(HOSTILE), "complete")
    page.finished("complete")


def test_a_foreign_host_is_refused(server):
    assert request(server.url).status == 200
    for path in ("", "config", "gradio_api/info", "gradio_api/component_server"):
        answer = request(server.url + path, headers={"Host": "evil.example"})
        assert answer.status == 400


def test_uploads_and_large_requests_are_refused(server):
    upload = request(server.url + "gradio_api/upload", data=b"x", method="POST")
    assert upload.status == 403
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=120)
    connection.putrequest("POST", "/gradio_api/queue/join")
    connection.putheader("Content-Length", str(middleware.MAX_BYTES + 1))
    connection.endheaders()  # the answer comes before the body
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("file", ["/etc/passwd", "app/page/layout.py", "../README.md"])
def test_files_are_not_served(server, file):
    assert request(f"{server.url}gradio_api/file={file}").status in (403, 404)


def test_too_long_a_text_is_refused_by_the_server(page):
    box = page.tab.locator("#chat-box textarea")
    box.fill("x" * 20_000)
    box.press("Enter")
    page.tab.locator("#chat-status").get_by_text("characters, at most").wait_for()
    assert page.view("run") is None
    assert len(box.input_value()) == 20_000  # nothing was cut


def test_a_mark_of_direction_turns_nothing_that_follows(page):
    page.set_tokens(8)
    page.ask("ab\u202ecdefgh")
    page.finished()
    texts = [piece["text"] for piece in page.view("pieces")]
    turned = texts.index("\u202e")
    assert texts[turned + 1 : turned + 7] == list("cdefgh")
    spans = page.tab.locator("#chat-view .text span")
    places = [spans.nth(turned + i).bounding_box()["x"] for i in range(1, 7)]
    assert places == sorted(places)
    for index in (turned, turned + 1):
        spans.nth(index).dispatch_event("click")
        page.tab.wait_for_function(
            f"document.querySelector('#chat-view .gl').view.row?.retention.length === {index + 1}"
        )
        assert "\u202e" not in page.tab.locator("#chat-view .memory").inner_text()


def test_only_a_run_s_own_arrays_can_be_downloaded(page):
    page.ask("arrays")
    page.finished()
    with page.tab.expect_download() as download:
        page.tab.locator("#chat-view .npz").click()
    url = download.value.url
    folder = url.rpartition("/")[0]
    assert url.startswith(page.url)
    assert page.view("run") in url
    answer = request(url)
    assert answer.status == 200
    with np.load(BytesIO(answer.body)) as arrays:
        assert set(arrays) == {"magnitude", "phase", "averages", "names", "texts"}
    for other in ("", "/", "/another.npz", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"):
        assert request(folder + other).status in (403, 404), other


def test_nobody_outside_is_asked(page, server):
    page.ask("![x](http://example.com/x.png)")
    page.finished()
    page.choose("b")
    page.ask("http://example.com/")
    page.finished()
    page.go_to("Side by side", "right")
    page.ask("both", "compare", "right")
    page.finished("right")
    assert "asked outside" not in server.log.read_text()


@pytest.fixture(scope="module")
def locked(start_server):
    """A server that asks for a password."""
    return start_server("--auth", "me:se:cret")


def test_without_the_password_there_is_nothing(locked):
    front = request(locked.url).body.decode()
    assert "auth_required" in front
    for word in ("System prompt", "chat-view", "What does `str.split` do?", "Temperature"):
        assert word not in front
    answers = [
        request(f"{locked.url}{path}")
        for path in ("config", "gradio_api/info", "gradio_api/queue/data?session_hash=x")
    ] + [
        request(
            f"{locked.url}gradio_api/{path}",
            data=b'{"data": ["x"], "fn_index": 0, "session_hash": "x"}',
            headers={"Content-Type": "application/json"},
        )
        for path in ("queue/join", "call/generate", "run/generate", "component_server")
    ]
    assert {answer.status for answer in answers} == {401}
    with pytest.raises(Exception, match=r"(?i)auth|credential|login|401"):
        Client(locked.url, verbose=False)


@pytest.mark.parametrize(("user", "password"), [("me", "secret"), ("you", "se:cret"), ("", "")])
def test_a_wrong_password_is_refused(locked, user, password):
    form = urllib.parse.urlencode({"username": user, "password": password}).encode()
    answer = request(locked.url + "login", data=form)
    assert answer.status in (400, 401, 422)
    assert not answer.headers.get("set-cookie")


def test_after_the_login_everything_works(locked, browser, new_page):
    context = new_context(browser)
    tab = context.new_page()
    tab.goto(locked.url)
    tab.get_by_label("username").fill("me")
    tab.get_by_label("password").fill("se:cret")
    tab.get_by_role("button", name="Login").click()
    tab.wait_for_function("document.querySelector('#chat-view .gl')?.view")
    tab.close()
    page = new_page(locked.url, context)
    page.set_tokens(8)
    page.ask("let me in")
    assert page.finished() > 8
    with page.tab.expect_download() as download:
        page.tab.locator("#chat-view .npz").click()
    assert request(download.value.url).status == 401  # a stranger has the address
    client = Client(locked.url, auth=("me", "se:cret"), verbose=False)
    assert client.predict("abc", max_tokens=3, api_name="/generate")["tokens"] == 3
