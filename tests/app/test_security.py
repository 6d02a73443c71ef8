"""Passwords, host names and refused requests."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from mlx_gateloop.app import security
from mlx_gateloop.app.__main__ import main
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from mlx_gateloop.errors import InputError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_only_this_machine_needs_no_password(host):
    assert security.is_local(host)
    assert security.credentials(None, host, share=False) is None


@pytest.mark.parametrize(
    ("host", "share"), [("0.0.0.0", False), ("192.168.1.2", False), ("127.0.0.1", True)]
)
def test_others_need_a_password(host, share):
    with pytest.raises(InputError, match="--auth"):
        security.credentials(None, host, share)
    assert security.credentials("me:a:b", host, share) == ("me", "a:b")


def test_a_password_from_a_file(tmp_path):
    (tmp_path / "password").write_text("me:secret\n")
    assert security.credentials(f"@{tmp_path / 'password'}", "0.0.0.0", False) == ("me", "secret")


@pytest.mark.parametrize("auth", ["me", "me:", ":secret", "@/nowhere"])
def test_a_malformed_password_is_refused(auth):
    with pytest.raises(InputError, match="--auth"):
        security.credentials(auth, "127.0.0.1", False)


def test_hosts():
    assert security.allowed_hosts("127.0.0.1", False) == ["127.0.0.1", "localhost"]
    assert security.allowed_hosts("me.lan", False) == ["me.lan", "localhost", "127.0.0.1"]
    assert "*.gradio.live" in security.allowed_hosts("127.0.0.1", True)
    assert security.allowed_hosts("0.0.0.0", False) == ["*"]
    assert security.allowed_hosts("::1", False) == ["[::1]", "localhost", "127.0.0.1"]


def test_the_environment_cannot_open_the_app(monkeypatch):
    names = ("GRADIO_SHARE", "GRADIO_SERVER_NAME", "GRADIO_ALLOWED_PATHS")
    monkeypatch.setattr(os, "environ", dict.fromkeys(names, "true"))
    security.environment(allow_hub=False)
    assert not set(names) & set(os.environ)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_what_the_guard_refuses():
    async def inside(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    client = TestClient(security.Guard(inside, Path("/files")))
    answer = client.get("/")
    assert answer.text == "fine"
    assert answer.headers["content-security-policy"] == security.POLICY
    assert client.post("/x", content=b"small").status_code == 200
    assert client.post("/x", content=b" " * (security.MAX_BODY_BYTES + 1)).status_code == 413
    assert client.post("/x", content=iter([b"no length"])).status_code == 411


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_no_address_reads_other_files_or_asks_others(method):
    client = TestClient(security.Guard(PlainTextResponse("fine"), Path("/files")))

    def ask(path):
        return client.request(method, path, content=b"x").status_code

    for path in ("upload", "upload/", "proxy=https://example.com/", "vibe-edit", "file/etc/passwd"):
        assert ask(f"/{path}") == ask(f"/gradio_api/{path}") == 403
    for file in ("http://example.com/x.png", "https:%2f%2fexample.com", "/etc/passwd", "/files2/x"):
        assert ask(f"/gradio_api/file={file}") == 403
    assert ask("/gradio_api/file=/files/transitions.npz") == 200
    assert ask("/config") == 200


def test_bad_arguments_end_with_one_line(capsys):
    assert main(["--host", "0.0.0.0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --host 0.0.0.0: ")
    assert error.count("\n") == 1


def test_a_file_in_a_request_is_not_taken_wherever_it_is():
    async def inside(scope, receive, send):
        assert (await receive())["body"].startswith(b"{")
        await PlainTextResponse("fine")(scope, receive, send)

    client = TestClient(security.Guard(inside, Path("/files")))
    file = {"path": "http://example.com/x.png", "meta": {"_type": "gradio.FileData"}}
    assert client.post("/call", json={"data": [1, ["a", file]]}).status_code == 403
    hidden = json.dumps({"data": [file]}).replace("gradio", "\\u0067radio")
    assert client.post("/call", content=hidden).status_code == 403
    assert client.post("/call", json={"data": ["gradio says"]}).text == "fine"
    assert client.post("/call", content="[" * 100_000).status_code == 400


class Login:
    """The login behind the guard; the body "right" is the password."""

    def __init__(self):
        self.guard, self.tried = security.Guard(self.check, Path("/files")), 0

    async def check(self, scope, receive, send):
        self.tried += 1
        right = (await receive())["body"] == b"right"
        await PlainTextResponse("", status_code=200 if right else 400)(scope, receive, send)

    async def status(self, body, path="/login"):
        statuses = []

        async def send(message):
            statuses.append(message.get("status"))

        async def receive():
            return {"type": "http.request", "body": body}

        headers = [(b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await self.guard(scope, receive, send)
        return statuses[0]


def test_passwords_cannot_be_guessed_fast(monkeypatch):
    login, delays, sleep = Login(), [], asyncio.sleep

    async def short(seconds):
        delays.append(seconds)
        await sleep(0)  # the others come meanwhile

    monkeypatch.setattr(asyncio, "sleep", short)

    async def many():
        assert await login.status(b"right") == 200
        assert delays == []
        many = [login.status(b"wrong", path) for path in ("/login", "/login/") * 10]
        statuses = await asyncio.gather(*many, login.status(b"wrong", "/other"))
        assert delays == [security.WRONG_LOGIN_SECONDS] * 4
        assert statuses == [400] * 4 + [429] * 16 + [400]
        assert await login.status(b"right") == 200

    asyncio.run(many())
    assert login.tried == 1 + 4 + 1 + 1


def test_a_login_that_never_comes_keeps_nobody_out():
    login = Login()

    async def never():
        scope = {"type": "http", "method": "POST", "path": "/login"}
        scope["headers"] = [(b"content-length", b"5")]
        await login.guard(scope, asyncio.Event().wait, None)

    async def work():
        waiting = [asyncio.create_task(never()) for _ in range(9)]
        await asyncio.sleep(0)
        assert await login.status(b"right") == 200
        for task in waiting:
            task.cancel()

    asyncio.run(work())
