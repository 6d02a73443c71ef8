"""Things that the page and the server must not do."""

import http.client

import pytest
from helpers.browser import new_context, request
from mlx_gateloop.app.server import middleware


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
