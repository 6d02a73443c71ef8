"""Security middleware: checks every request before Gradio sees it."""

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failed_logins import FailedLogins
from .security import is_allowed

LOG = logging.getLogger(__name__)
# Gradio builds functions from strings and sets style attributes.
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
# Routes that the page and programs need, of Gradio's 80. Others write files (deep_link, upload),
# fetch from other servers, edit the program, or hold a connection open without a password.
ALLOWED = re.compile(
    r"/(v1/(models(/.+)?|chat/completions|completions)|config|theme\.css|favicon\.ico|login|logout"
    r"|(assets|static|scripts)/.+"
    r"|gradio_api/(info|openapi\.json|app_id|startup-events|component_server|cancel|reset"
    r"|queue/(join|data)|(run|call)/.+|mcp(/.+)?))?/?"
)
NAME = re.compile(r"[\w.-]{1,253}", re.ASCII)
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)  # JSON string, possibly unterminated
WITH_BODY = ("POST", "PUT", "PATCH")
MAX_BYTES = 256 * 2**10  # per request; a message has at most 16,000 characters, 64 kB
MAX_VALUES = 3_000  # in a request, by its commas and brackets; 400 messages have 2,400
BODY_SECONDS = 10  # to receive a body
FAILED = "Internal error; see the server's log."


class SecurityMiddleware:
    """Rejects requests that neither the page nor a program needs; adds security headers."""

    def __init__(
        self, app: ASGIApp, hosts: Sequence[str], proxies: Sequence[str], root_path: str
    ) -> None:
        self.app, self.failed_logins = app, FailedLogins()
        self.hosts, self.proxies, self.root_path = [*hosts, *proxies], proxies, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":  # startup or shutdown
            await self.app(scope, receive, send)
            return
        if scope["path"].startswith(f"{self.root_path}/"):  # some proxies strip it
            scope = {**scope, "path": scope["path"].removeprefix(self.root_path)}
        login, started, ended = None, False, False

        async def send_checked(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
                if login is not None and message["status"] == 400:
                    message["status"] = await self.failed_logins.answer(*login)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            self._check(scope)
            if scope["method"] in WITH_BODY:
                body = await _body(scope, receive)
                receive = _replay(body, receive)
                login = _login(scope, body)
            path = self.root_path + scope["path"]  # an ASGI path includes the root path
            full = {**scope, "root_path": self.root_path, "path": path}
            await self.app(full, receive, send_checked)
        except HTTPException as error:  # Gradio's page shows the value "error"
            answer = JSONResponse(
                {"error": error.detail}, error.status_code, {"connection": "close"}
            )
            await answer(scope, receive, send_checked)
        except Exception:
            LOG.exception("a request failed")
            if not started:
                await JSONResponse({"error": FAILED}, 500)(scope, receive, send_checked)
            elif not ended:
                await send({"type": "http.response.body", "body": b""})

    def _check(self, scope: Scope) -> None:
        """Check the path, the host and the origin; raise the error response."""
        path, headers = scope["path"], Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        if not is_allowed(host, self.hosts):
            name = NAME.match(host)
            advice = f"start it with --allow-host {name[0] if name else 'NAME'}"
            raise HTTPException(400, f"Unknown host name: {advice}.")
        if not ALLOWED.fullmatch(path):
            raise HTTPException(403, "This path is not available.")
        site = headers.get("sec-fetch-site")  # another port of this machine is "same-site"
        linked = path != "/" and site in ("cross-site", "same-site")
        source = host if origin is None else re.split("[/?#]", origin.partition("://")[2])[0]
        if linked or not (source.lower() == host.lower() or is_allowed(source, self.proxies)):
            raise HTTPException(403, "Requests from other sites are not allowed.")


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Read and check the body; raise an error response if it is too large, slow or unknown."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "The request has no content-length.")
    if len(length) > 9 or int(length) > MAX_BYTES:
        raise HTTPException(413, f"The request is too large: at most {MAX_BYTES} bytes.")
    is_form = scope["path"].rstrip("/") == "/login"
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if not is_form and kind != "application/json":
        raise HTTPException(415, "The request is not JSON: set content-type: application/json.")
    try:
        body = await asyncio.wait_for(_read_body(receive), BODY_SECONDS)
    except (asyncio.TimeoutError, TimeoutError):  # the same class since Python 3.11
        raise HTTPException(408, "The request did not arrive in time.") from None
    if not is_form:
        _check_values(body)
    return body


async def _read_body(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > MAX_BYTES:
            raise HTTPException(413, "The request exceeds its content-length.")
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()  # end of the connection

    return replay


def _check_values(body: bytes) -> None:
    """Reject files, which Gradio would fetch, and too many values, which cost it seconds."""
    signs = STRING.sub(b"", body)  # count first: parsing takes seconds here, too
    if sum(map(signs.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise HTTPException(413, f"The request has more than {MAX_VALUES} values.")
    try:
        # UTF-8 alone, as counted; one spelling of each string, whose own quotes are no ends
        text = json.dumps(json.loads(body.decode())).replace('\\"', "'")
    except RecursionError:
        raise HTTPException(400, "The request is nested too deeply.") from None
    except ValueError:
        raise HTTPException(400, "The request is not JSON.") from None
    if '"gradio.FileData"' in text:
        raise HTTPException(403, "Files are not allowed.")


def _login(scope: Scope, body: bytes) -> tuple[str, str] | None:
    if scope["path"].rstrip("/") != "/login":
        return None
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=16)
    except ValueError:
        raise HTTPException(400, "The form has more than 16 fields.") from None
    client = scope.get("client") or ("",)
    return client[0], fields.get("username", [""])[0]
