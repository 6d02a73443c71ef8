"""The guard: every request passes it before Gradio, which it may never reach."""

import asyncio
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .security import is_allowed
from .wrong_logins import WrongLogins

LOG = logging.getLogger(__name__)
# Gradio builds functions from strings and writes style attributes; all else comes from this server.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}
# What the page and programs need of Gradio's 80 routes. Others write files (deep_link, upload),
# fetch from other servers, edit the program, or hold a connection open without a password.
OPEN = re.compile(
    r"/(config|theme\.css|favicon\.ico|login|logout|(assets|static|scripts)/.+"
    r"|gradio_api/(info|openapi\.json|app_id|startup-events|component_server|cancel|reset"
    r"|queue/(join|data)|(run|call)/.+|mcp(/.+)?|file=.+))?/?"
)
NAME = re.compile(r"[\w.-]{1,253}", re.ASCII)
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)  # of JSON, or its unended beginning
WITH_BODY = ("POST", "PUT", "PATCH")
MOST_BYTES = 256 * 2**10  # of a request: four times a message of 16,000 characters of four bytes
MOST_VALUES = 1_000  # in a request; the page sends 20
BODY_SECONDS = 10  # for a body to arrive
FAILED = "Something went wrong inside; the server's log says what."


class Guard:
    """Rejects what neither the page nor a program needs, and adds the headers to every answer."""

    def __init__(
        self,
        app: ASGIApp,
        files: Path,
        hosts: Sequence[str] = ("*",),
        proxies: Sequence[str] = (),
        root_path: str = "",
    ) -> None:
        self.app, self.files, self.wrong_logins = app, files, WrongLogins()
        self.hosts, self.proxies, self.root_path = [*hosts, *proxies], proxies, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":  # the server starts or ends
            await self.app(scope, receive, send)
            return
        if scope["path"].startswith(f"{self.root_path}/"):  # some proxies leave it out
            scope = {**scope, "path": scope["path"].removeprefix(self.root_path)}
        login, begun, ended = None, False, False

        async def send_checked(message: Message) -> None:
            nonlocal begun, ended
            if message["type"] == "http.response.start":
                begun = True
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
                if login is not None and message["status"] == 400:
                    message["status"] = await self.wrong_logins.answer(*login)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            self._check(scope)
            if scope["method"] in WITH_BODY:
                body = await _body(scope, receive)
                receive = _again(body, receive)
                login = _login(scope, body)
            path = self.root_path + scope["path"]  # ASGI's paths have the root's
            full = {**scope, "root_path": self.root_path, "path": path}
            await self.app(full, receive, send_checked)
        except HTTPException as refusal:
            answer = PlainTextResponse(refusal.detail, refusal.status_code, {"connection": "close"})
            await answer(scope, receive, send_checked)
        except Exception:
            LOG.exception("a request failed")
            if not begun:
                answer = PlainTextResponse(FAILED, 500)
                await answer(scope, receive, send_checked)
            elif not ended:
                await send({"type": "http.response.body", "body": b""})

    def _check(self, scope: Scope) -> None:
        """Check the address and the site that asks; raise the answer to give instead."""
        path, headers = scope["path"], Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        if not is_allowed(host, self.hosts):
            name = NAME.match(host)
            advice = f"start it with --allow-host {name[0] if name else 'NAME'}"
            raise HTTPException(400, f"This app does not know this name of its machine: {advice}.")
        _, is_file, file = path.partition("/file=")  # which may be an address of the web too
        if not OPEN.fullmatch(path) or (is_file and not file.startswith(f"{self.files}{os.sep}")):
            raise HTTPException(403, "This is closed.")
        site = headers.get("sec-fetch-site")  # another port of this machine is "same-site"
        linked = path != "/" and site in ("cross-site", "same-site")
        asking = host if origin is None else urlsplit(origin).netloc
        if linked or not (asking.lower() == host.lower() or is_allowed(asking, self.proxies)):
            raise HTTPException(403, "Another site may not ask this.")


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Read and check the body; raise the answer if it is too large, too slow or unknown."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "The length of the request is missing.")
    if len(length) > 9 or int(length) > MOST_BYTES:
        raise HTTPException(413, f"The request is too large: at most {MOST_BYTES} bytes.")
    is_form = scope["path"].rstrip("/") == "/login"
    if not is_form and headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(415, "The request is not JSON: set content-type: application/json.")
    try:
        body = await asyncio.wait_for(_whole(receive), BODY_SECONDS)
    except (asyncio.TimeoutError, TimeoutError):  # one and the same from Python 3.11 on
        raise HTTPException(408, "The request did not arrive in time.") from None
    if not is_form:
        _check_values(body)
    return body


async def _whole(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "The request is larger than it said.")
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()  # the end of the connection

    return replay


def _check_values(body: bytes) -> None:
    """Refuse files, which Gradio would fetch from any address, and more values than are needed.

    Gradio reads a request before it asks for the password: many small lists cost it seconds.
    """
    too_many = HTTPException(413, f"The request has more than {MOST_VALUES} values.")
    signs = STRING.sub(b"", body)  # counted first: to make the values takes as long here
    if sum(map(signs.count, (b",", b"[", b"{"))) > 2 * MOST_VALUES:
        raise too_many
    try:
        for number, value in enumerate(_values(json.loads(body))):
            if value == "gradio.FileData":
                raise HTTPException(403, "Files are not taken.")
            if number >= MOST_VALUES:
                raise too_many
    except RecursionError:
        raise HTTPException(400, "The request is nested too deep.") from None
    except ValueError:
        raise HTTPException(400, "The request is not JSON.") from None


def _values(value: object) -> Iterator[object]:
    todo = [value]
    while todo:
        value = todo.pop()
        yield value
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value


def _login(scope: Scope, body: bytes) -> tuple[str, str] | None:
    """Return the address and the name of someone who logs in."""
    if scope["path"].rstrip("/") != "/login":
        return None
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=16)
    client = scope.get("client") or ("",)
    return client[0], fields.get("username", [""])[0]
