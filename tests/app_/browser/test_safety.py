"""What the page and the server must not do."""

import http.client
import urllib.error
import urllib.request

import pytest

HOSTILE = [
    "<script>alert(1)</script>",
    "${alert(1)} {{value}} `${alert(2)}`",
    "![x](http://example.com/x.png) <img src=http://example.com/y.png onerror=alert(3)>",
]


def request(url, **options):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=10) as answer:
            return answer
    except urllib.error.HTTPError as error:
        with error:
            return error


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
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.wait_for_function("document.querySelector('#complete-view .gl')?.view")
    page.ask("".join(HOSTILE), "complete")
    page.finished("complete")


def test_a_foreign_host_is_refused(server):
    assert request(server.url).status == 200
    for path in ("", "config", "gradio_api/info", "gradio_api/component_server"):
        answer = request(server.url + path, headers={"Host": "evil.example"})
        assert answer.status == 400


def test_every_answer_carries_the_policy(server):
    policy = request(server.url).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


def test_uploads_and_large_requests_are_refused(server):
    upload = request(server.url + "gradio_api/upload", data=b"x", method="POST")
    assert upload.status == 403
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=10)
    connection.putrequest("POST", "/gradio_api/queue/join")
    connection.putheader("Content-Length", "2000001")
    connection.endheaders()  # the answer comes before the body
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("file", ["/etc/passwd", "app/main.py", "../README.md"])
def test_files_are_not_served(server, file):
    assert request(f"{server.url}gradio_api/file={file}").status in (403, 404)


def test_too_long_a_text_is_refused_by_the_server(page):
    page.tab.locator("#chat-box textarea").evaluate("e => { e.maxLength = 10 ** 6 }")
    page.tab.locator("#chat-box textarea").fill("x" * 20_000)
    page.tab.locator("#chat-box textarea").press("Enter")
    page.tab.get_by_text("characters, at most").wait_for()
    assert page.view("run") is None
