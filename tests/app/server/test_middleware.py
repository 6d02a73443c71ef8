"""Requests that the guard refuses, and errors that it keeps out of the log."""

import asyncio
import json
from unittest.mock import AsyncMock

import pytest
from mlx_gateloop.app.server import middleware
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

CALL = "/gradio_api/call/generate"
JSON = {"content-type": "application/json"}
FILE = {"path": "http://example.com/x.png", "meta": {"_type": "gradio.FileData"}}
MAX = middleware.MAX_BYTES


def guarded(app=None):
    return middleware.SecurityMiddleware(app or PlainTextResponse("fine"), ["*"], [], "")


@pytest.mark.parametrize(("host", "origin", "status"), [
    ("localhost:7860", None, 200), ("LOCALHOST", None, 200), ("a.b.dev", "https://a.b.dev", 200),
    ("localhost:7860", "https://a.b.dev", 200),  # a tunnel may change the Host
    ("a.b.dev", "https://evil.test", 403),
    *[("localhost:7860", origin, 403) for origin in ("http://localhost:1", "http://[", "null")],
    ("evil.test", None, 400), ("xb.dev", None, 400), ("<b>", None, 400),
])  # fmt: skip
def test_only_known_hosts_are_answered(host, origin, status):
    app = PlainTextResponse("fine")
    client = TestClient(middleware.SecurityMiddleware(app, ["localhost"], ["*.b.dev"], "/sub"))
    headers = {"host": host} | ({"origin": origin} if origin else {})
    for path in ("/config", "/sub/config"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status
        if status == 400:
            assert "--allow-host" in answer.text
            assert "<" not in answer.text
    assert client.get("/sub/closed", headers={"host": "localhost"}).status_code == 403


@pytest.fixture
def client():
    return TestClient(guarded())


@pytest.mark.parametrize(("content", "headers", "status"), [
    (b"{}" + b" " * (MAX - 2), JSON, 200), (b"{}" + b" " * (MAX - 1), JSON, 413),
    (iter([b"no length"]), JSON, 411),
    *[(b"{}", JSON | {"content-length": n}, 411) for n in ("-1", "1e3", "٣".encode())],
    (b"{}", JSON | {"content-length": "9" * 5000}, 413),
    *[(b"{}", {"content-type": kind}, 415) for kind in ("text/plain", "multipart/form-data")],
    (b"{}", {}, 415), *[(body, JSON, 400) for body in (b"{", '{"a": "∀"}'.encode("utf-16-le"))],
    (b"{}", {"content-type": "Application/JSON; charset=utf-8"}, 200),
    (json.dumps({"data": [1, ["a", FILE]]}), JSON, 403),
    (json.dumps({"data": ['"gradio.FileData']}), JSON, 200),
    (json.dumps({"data": [FILE]}).replace("gradio", "\\u0067radio"), JSON, 403),
    (json.dumps({"data": ["gradio says", "," * 16_000, *range(20)]}), JSON, 200),
    (json.dumps({"data": [[]] * middleware.MAX_VALUES}), JSON, 413),
    (json.dumps([{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 400), JSON, 200),
    ("[" * 900, JSON, 400), ('"' + '\\",' * 60_000 + "\\", JSON, 400),  # a text without an end
])  # fmt: skip
def test_a_body_is_small_json_without_files(client, content, headers, status):
    answer = client.post(CALL, content=content, headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]  # Gradio's page shows it


def test_values_are_counted_before_they_are_made(client, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    for lists in ("[" + "[]," * 80_000 + "0]", "[" * 100_000):
        assert client.post(CALL, content=lists, headers=JSON).status_code == 413


@pytest.mark.parametrize(("bodies", "status"), [([b"x" * 2**17] * 1000, 413), ([b"["], 408)])
async def test_a_body_that_does_not_come_as_announced_is_given_up(bodies, status, monkeypatch):
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.05 if status == 408 else 100)
    send = AsyncMock()

    async def receive():
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(0), "more_body": True}

    headers = [(b"content-length", b"9"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CALL, "headers": headers}
    await guarded()(scope, receive, send)
    (answer,) = send.call_args_list[0].args
    assert answer["status"] == status
    assert (b"connection", b"close") in answer["headers"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_no_address_reads_other_files_or_asks_others(client, method):
    def status(path):
        return client.request(method, path, json=1).status_code

    for path in ("upload", "upload/", "proxy=https://example.com/", "file/etc/passwd", "deep_link"):
        assert status(f"/{path}") == status(f"/gradio_api/{path}") == 403
    for file in ("http://example.com/x.png", "https:%2f%2fexample.com", "/etc/passwd"):
        assert status(f"/gradio_api/file={file}") == 403
    assert status("/config") == status("/v1/models") == status("/v1/models/a/b") == 200
    for path in ("/", "/closed"):
        assert client.get(path).headers["content-security-policy"] == middleware.POLICY
    for path in ("mcp", "mcp/", "mcp/schema", "mcp/sse", "mcp/messages/"):
        assert status(f"/gradio_api/{path}") == 200


def test_another_site_may_link_to_the_page_and_ask_nothing(client):
    ports = ("http://localhost:9999", "http://testserver:81")
    for origin in (*ports, "null", "http://evil.example"):
        headers = JSON | {"origin": origin, "access-control-request-method": "POST"}
        for method, path in (("POST", CALL), ("GET", "/config"), ("OPTIONS", CALL)):
            answer = client.request(method, path, content="{}", headers=headers)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
    assert client.post(CALL, json={}, headers={"origin": "http://testserver"}).text == "fine"
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        headers = {"sec-fetch-site": site}
        assert client.get("/", headers=headers).text == "fine"
        assert client.get("/logout", headers=headers).status_code == status


def test_an_error_that_anybody_can_provoke_is_answered(caplog):
    async def fails_later(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise KeyError

    answer = TestClient(guarded(AsyncMock(side_effect=KeyError))).get("/config")
    assert (answer.status_code, answer.json()) == (500, {"error": middleware.FAILED})
    assert TestClient(guarded(fails_later)).get("/config").text == "begun"
    assert len(caplog.records) == 2


@pytest.mark.parametrize("path", ["/login", "/login/"])
def test_a_wrong_password_is_answered_late_and_the_right_one_at_once(delays, path):
    async def check(scope, receive, send):
        right = b"password=right" in (await receive())["body"]
        await PlainTextResponse("", status_code=200 if right else 400)(scope, receive, send)

    client = TestClient(guarded(check))
    for password, status, count in (("wrong", 400, 1), ("right", 200, 1), ("wrong", 400, 2)):
        answer = client.post(path, content=f"username=me&password={password}")
        assert (answer.status_code, len(delays)) == (status, count)
    assert client.post(path, content="a=b&" * 18).status_code == 400
