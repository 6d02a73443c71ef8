"""Things that the page and the server must not do."""

import http.client

import numpy as np
import pytest
from helpers.browser import new_context, request, view
from mlx_gateloop.app.server import middleware

HOSTILE = [
    "<script>alert(1)</script>",
    "${alert(1)} {{value}} `${alert(2)}`",
    "![x](http://example.com/x.png) <img src=http://example.com/y.png onerror=alert(3)>",
]


def test_a_mark_of_direction_turns_nothing_that_follows(page):
    page.set_tokens(8)
    page.answer("ab\u202ecdefgh")
    texts = [piece["text"] for piece in page.view("pieces")]
    turned = texts.index("\u202e")
    assert texts[turned + 1 : turned + 7] == list("cdefgh")
    spans = page.tab.locator("#chat-view .text span")
    xs = [spans.nth(turned + i).bounding_box()["x"] for i in range(1, 7)]
    assert xs == sorted(xs)
    for index in (turned, turned + 1):
        spans.nth(index).dispatch_event("click")
        page.tab.wait_for_function(f"{view()}.row?.retention.length === {index + 1}")
        assert "\u202e" not in page.tab.locator("#chat-view .memory").inner_text()


def test_only_a_run_s_own_arrays_can_be_downloaded(answered, download):
    file, url = download(answered, "npz")
    folder = url.rpartition("/")[0]
    assert file.name == "a-What-does-a-state-keep.npz"
    assert url.startswith(answered.url)
    assert answered.view("run") in url
    with np.load(file) as arrays:
        assert set(arrays) == {"magnitude", "phase", "averages", "names", "texts"}
    for other in ("", "/", "/another.npz", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"):
        assert request(folder + other).status in (403, 404), other


def test_the_server_refuses_foreign_hosts_uploads_large_requests_and_files(server):
    assert request(server.url).status == 200
    foreign = {"Host": "evil.example"}
    for path in ("", "config", "gradio_api/info", "gradio_api/component_server"):
        assert request(server.url + path, headers=foreign).status == 400
    assert request(server.url + "gradio_api/upload", data=b"x", method="POST").status == 403
    for file in ("/etc/passwd", "app/page/layout.py", "../README.md"):
        assert request(f"{server.url}gradio_api/file={file}").status in (403, 404)
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=120)
    connection.putrequest("POST", "/gradio_api/queue/join")
    connection.putheader("Content-Length", str(middleware.MAX_BYTES + 1))
    connection.endheaders()  # the answer comes before the body
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.slow
def test_after_the_login_everything_works(start_server, browser, new_page):
    locked = start_server("--auth", "me:se:cret")
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
    assert page.answer("let me in") > 8
    with page.tab.expect_download() as download:
        page.tab.locator("#chat-view .npz").click()
    assert request(download.value.url).status == 401  # a stranger has the address
