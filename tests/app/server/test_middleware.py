"""Requests that the guard refuses, and errors that it keeps out of the log."""

import asyncio
import inspect
import json
import re
from pathlib import Path

import gradio.routes
import pytest
from mlx_gateloop.app.server import middleware, wrong_logins
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

CALL = "/gradio_api/call/generate"
OURS, THEIRS = "http://testserver", "http://localhost:9999"


def guarded(app=None):
    return middleware.Guard(app or PlainTextResponse("fine"), Path("/files"))


@pytest.fixture
def client():
    return TestClient(guarded())


def test_every_answer_carries_the_policy(client):
    for path in ("/", "/closed"):
        assert client.get(path).headers["content-security-policy"] == middleware.POLICY


def test_the_size_of_a_request_is_limited(client):
    fill = b" " * (middleware.MOST_BYTES - 2)
    json_type = {"content-type": "application/json"}
    assert client.post(CALL, content=b"{}" + fill, headers=json_type).text == "fine"
    assert client.post(CALL, content=b"{}" + fill + b" ", headers=json_type).status_code == 413
    assert client.post(CALL, content=iter([b"no length"])).status_code == 411
    for length in ("-1", "1e3", "٣", "9" * 5000):
        headers = {**json_type, "content-length": length.encode()}
        assert client.post(CALL, content=b"{}", headers=headers).status_code in (411, 413)


def ask(bodies):
    """The start of the answer to a request that comes in these pieces, then stalls."""
    messages = []

    async def send(message):
        messages.append(message)

    async def receive():
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(0), "more_body": True}

    headers = [(b"content-length", b"9"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CALL, "headers": headers}
    asyncio.run(guarded()(scope, receive, send))
    return messages[0]


def test_a_body_larger_than_it_said_is_refused_while_it_comes():
    assert ask([b"x" * 2**17] * 1000)["status"] == 413


def test_half_a_body_is_given_up(monkeypatch):
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.01)
    answer = ask([b"["])
    assert answer["status"] == 408
    assert (b"connection", b"close") in answer["headers"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_no_address_reads_other_files_or_asks_others(client, method):
    def status(path):
        return client.request(method, path, json=1).status_code

    for path in ("upload", "upload/", "proxy=https://example.com/", "vibe-edit", "file/etc/passwd"):
        assert status(f"/{path}") == status(f"/gradio_api/{path}") == 403
    for file in ("http://example.com/x.png", "https:%2f%2fexample.com", "/etc/passwd", "/files2/x"):
        assert status(f"/gradio_api/file={file}") == 403
    assert status("/gradio_api/file=/files/transitions.npz") == 200
    assert status("/config") == 200


def test_only_what_is_needed_of_gradio_is_open(client):
    """All routes of this version of Gradio: a new one is closed until it is asked for."""
    source = inspect.getsource(gradio.routes)
    routes = set(re.findall(r'@(app|router)\.\w+\(\s*f?"(/[^"]*)"', source))
    assert len(routes) > 60
    prefix = {"app": "", "router": "/gradio_api"}
    routes = {prefix[name] + path for name, path in routes}
    left = {path for path in routes if client.get(path).status_code == 200}
    assert left - {path + "/" for path in left} == {
        "/",
        "/assets/{path:path}",
        "/config",
        "/favicon.ico",
        "/gradio_api/app_id",
        "/gradio_api/call/v2/{api_name}",
        "/gradio_api/call/v2/{api_name}/{event_id}",
        "/gradio_api/call/{api_name}",
        "/gradio_api/call/{api_name}/{event_id}",
        "/gradio_api/cancel",
        "/gradio_api/component_server",
        "/gradio_api/info",
        "/gradio_api/openapi.json",
        "/gradio_api/queue/data",
        "/gradio_api/queue/join",
        "/gradio_api/reset",
        "/gradio_api/run/{api_name}",
        "/gradio_api/startup-events",
        "/login",
        "/logout",
        "/static/{path:path}",
        "/theme.css",
    }


@pytest.mark.parametrize("path", ["mcp", "mcp/", "mcp/schema", "mcp/sse", "mcp/messages/"])
def test_programs_reach_the_model_context_protocol(client, path):
    assert client.post(f"/gradio_api/{path}", json={}).text == "fine"


def test_nobody_can_write_a_conversation_to_a_public_folder(client):
    for path in ("deep_link", "deep_link/"):
        assert client.get(f"/gradio_api/{path}?session_hash=x").status_code == 403


@pytest.mark.parametrize("origin", [THEIRS, "null", "http://testserver:81", "http://evil.example"])
def test_another_site_may_not_ask(client, origin):
    asks = {"access-control-request-method": "POST"}
    for answer in (
        client.post(CALL, json={}, headers={"origin": origin}),
        client.get("/config", headers={"origin": origin}),
        client.options(CALL, headers={"origin": origin, **asks}),
    ):
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert client.post(CALL, json={}, headers={"origin": OURS}).text == "fine"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_only_link_to_the_page(client, site):
    linked = {"sec-fetch-site": site}
    assert client.get("/", headers=linked).text == "fine"
    assert client.get("/logout", headers=linked).status_code == 403
    assert client.get("/logout", headers={"sec-fetch-site": "same-origin"}).text == "fine"


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", ""])
def test_only_json_is_taken(client, kind):
    headers = {"content-type": kind}
    assert client.post(CALL, content=b"{}", headers=headers).status_code == 415
    assert client.post(CALL, content=b"{", headers={"content-type": "application/json"}).is_error


def test_a_file_in_a_request_is_not_taken_wherever_it_is(client):
    file = {"path": "http://example.com/x.png", "meta": {"_type": "gradio.FileData"}}
    assert client.post(CALL, json={"data": [1, ["a", file]]}).status_code == 403
    hidden = json.dumps({"data": [file]}).replace("gradio", "\\u0067radio")
    assert client.post(CALL, json=json.loads(hidden)).status_code == 403
    assert client.post(CALL, json={"data": ["gradio says"]}).text == "fine"


def test_a_request_of_many_values_never_reaches_gradio(client):
    json_type = {"content-type": "application/json"}
    assert client.post(CALL, json={"data": [[]] * middleware.MOST_VALUES}).status_code == 413
    assert client.post(CALL, content="[" * 1_900, headers=json_type).status_code == 400
    assert client.post(CALL, json={"data": ["," * 16_000, *range(20)]}).text == "fine"


def test_values_are_counted_before_they_are_made(client, monkeypatch):
    json_type = {"content-type": "application/json"}
    for lists in ("[" + "[]," * 80_000 + "0]", "[" * 100_000):
        with monkeypatch.context() as patch:
            patch.setattr(json, "loads", None)
            assert client.post(CALL, content=lists, headers=json_type).status_code == 413
    unended = '"' + '\\",' * 60_000 + "\\"
    assert client.post(CALL, content=unended, headers=json_type).status_code == 400


def test_an_error_that_anybody_can_provoke_is_answered(caplog):
    async def unknown(scope, receive, send):
        raise KeyError(scope["path"])

    async def unknown_later(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise KeyError(scope["path"])

    answer = TestClient(guarded(unknown)).get("/config")
    assert (answer.status_code, answer.text) == (500, middleware.FAILED)
    assert TestClient(guarded(unknown_later)).get("/config").text == "begun"
    assert len(caplog.records) == 2


class Login:
    """The login behind the guard; the body "password=right" is right."""

    def __init__(self):
        self.guard, self.tried = guarded(self.check), 0

    async def check(self, scope, receive, send):
        self.tried += 1
        right = b"password=right" in (await receive())["body"]
        await PlainTextResponse("", status_code=200 if right else 400)(scope, receive, send)

    async def status(self, password, path="/login", address="1.2.3.4", name="me"):
        statuses = []
        body = f"username={name}&password={password}".encode()

        async def send(message):
            statuses.append(message.get("status"))

        async def receive():
            return {"type": "http.request", "body": body}

        headers = [(b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await self.guard({**scope, "client": (address, 1)}, receive, send)
        return statuses[0]


@pytest.fixture
def delays(monkeypatch):
    """The delays of wrong logins, which take no time."""
    delays, sleep = [], asyncio.sleep

    async def short(seconds):
        delays.append(seconds)
        await sleep(0)  # the others come meanwhile

    monkeypatch.setattr(asyncio, "sleep", short)
    return delays


def test_the_right_password_is_let_in_while_others_guess(delays):
    login = Login()

    async def many():
        wrong = [login.status("wrong", path) for path in ("/login", "/login/") * 100]
        tasks = [login.status("right") for _ in range(40)]
        statuses = await asyncio.gather(*wrong, *tasks)
        assert statuses[200:] == [200] * 40
        assert set(statuses[:200]) == {400, 429}

    asyncio.run(many())
    assert login.tried == 240
    assert len(delays) == wrong_logins.MOST_WAITING


def test_wrong_logins_wait_longer_by_address_and_by_name(delays):
    login = Login()

    async def some():
        for address, name in (("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("c", "z")):
            assert await login.status("wrong", address=address, name=name) == 400
        for number in range(10):
            await login.status("wrong", address="d", name=str(number))

    asyncio.run(some())
    assert delays == [1, 2, 2, 3, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


def test_the_memory_of_wrong_logins_is_bounded(delays):
    login = Login()

    async def many():
        for number in range(wrong_logins.MOST_KNOWN + 500):
            await login.status("wrong", address=str(number), name="n" * number)

    asyncio.run(many())
    known = login.guard.wrong_logins._counts
    assert len(known) == wrong_logins.MOST_KNOWN
    assert max(len(name) for _, name in known) == 100


def test_a_login_that_never_comes_keeps_nobody_out():
    login = Login()

    async def never():
        scope = {"type": "http", "method": "POST", "path": "/login"}
        scope["headers"] = [(b"content-length", b"5")]
        await login.guard(scope, asyncio.Event().wait, None)

    async def work():
        waiting = [asyncio.create_task(never()) for _ in range(99)]
        await asyncio.sleep(0)
        assert await login.status("right") == 200
        for task in waiting:
            task.cancel()

    asyncio.run(work())
