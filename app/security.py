"""Access to the app: passwords, host names, and limits of requests and of the page."""

import asyncio
import json
import os
import re
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_gateloop.errors import InputError

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
# Gradio's routes that fetch from other servers, edit files or show data of other visitors.
CLOSED = re.compile(
    r"/(proxy=|file/|upload|stream/|process_recording|(undo-)?vibe-|custom_component/|dev/"
    r"|run-history|monitoring)"
)
WITH_BODY = ("POST", "PUT", "PATCH")
MAX_BODY_BYTES = 2_000_000  # a long chat is some hundred kilobytes
MAX_LOGINS = 4  # at once
WRONG_LOGIN_SECONDS = 1.0  # delay of a wrong one, so that passwords cannot be guessed fast


def environment(allow_hub: bool) -> None:
    """Set the environment of Gradio and the hub client; call it before they are imported.

    Args:
        allow_hub: True if models may be downloaded.
    """
    for name in list(os.environ):
        # they could share the app, bind it elsewhere or allow more files
        if name.startswith("GRADIO_") and name != "GRADIO_TEMP_DIR":
            del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if not allow_hub:
        os.environ["HF_HUB_OFFLINE"] = "1"


def is_local(host: str) -> bool:
    """Return True if only this machine can connect to a server on this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def credentials(auth: str | None, host: str, share: bool) -> tuple[str, str] | None:
    """Return the user and the password to ask for, or None.

    Args:
        auth: "USER:PASSWORD", "@FILE" that holds such a line, or None.
        host: Address that the server binds to.
        share: True if a public link is asked for.

    Raises:
        InputError: Others could reach the app without a password, or auth is malformed.
    """
    if auth is None:
        if share or not is_local(host):
            what = "--share" if share else f"--host {host}"
            raise InputError(f"{what}: others can reach the app; add --auth USER:PASSWORD or @FILE")
        return None
    if auth.startswith("@"):
        try:
            auth = Path(auth[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--auth {auth}: cannot be read: {error}") from None
    user, _, password = auth.partition(":")
    if not user or not password:
        raise InputError("--auth: expected USER:PASSWORD, or @FILE that holds it")
    return user, password


def allowed_hosts(host: str, share: bool) -> list[str]:
    """Return the Host headers to answer; any other name is a foreign site that points here."""
    if host in ("0.0.0.0", "::"):  # any name may be ours; the password keeps strangers out
        return ["*"]
    public = ["*.gradio.live"] if share else []
    return [*dict.fromkeys([in_address(host), "localhost", "127.0.0.1"]), *public]


def in_address(host: str) -> str:
    """Write a host as in a URL and a Host header: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def middleware(host: str, share: bool, files: Path) -> list[Middleware]:
    """Return the middleware that every request passes before Gradio.

    Args:
        host: Address that the server binds to.
        share: True if there is a public link.
        files: The folder that files may be read from.
    """
    return [
        Middleware(Guard, files=files),
        Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts(host, share)),
    ]


class Guard:
    """Adds the headers to every answer, refuses uploads and oversized requests, slows guesses."""

    def __init__(self, app: ASGIApp, files: Path) -> None:
        self.app, self.files, self.logins = app, files, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        login = scope["method"] == "POST" and scope["path"].rstrip("/").endswith("/login")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
                if login and message["status"] == 400:
                    await asyncio.sleep(WRONG_LOGIN_SECONDS)
            await send(message)

        refusal = self._closed(scope["path"]) or _refusal(scope)
        if refusal is None and scope["method"] in WITH_BODY:
            body = await _whole(receive)
            refusal, receive = _refused_body(body), _again(body, receive)
        if login and self.logins >= MAX_LOGINS:
            refusal = PlainTextResponse("Too many logins; try again in a moment.", status_code=429)
        self.logins += login
        try:
            await (refusal or self.app)(scope, receive, send_with_headers)
        finally:
            self.logins -= login

    def _closed(self, path: str) -> PlainTextResponse | None:
        _, is_file, file = path.partition("/file=")  # which may be an address of the web too
        if CLOSED.search(path) or (is_file and not file.startswith(f"{self.files}{os.sep}")):
            return PlainTextResponse("This is closed.", status_code=403)
        return None


async def _whole(receive: Receive) -> bytes:
    body, more = b"", True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()  # the end of the connection
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _refused_body(body: bytes) -> PlainTextResponse | None:
    """Refuse files in a request: Gradio would fetch any address that one names."""
    try:
        todo: list[object] = [json.loads(body)]
    except ValueError:  # a form, as the login's
        return None
    except RecursionError:
        return PlainTextResponse("The request is nested too deep.", status_code=400)
    while todo:
        value = todo.pop()
        if value == "gradio.FileData":
            return PlainTextResponse("Files are not taken.", status_code=403)
        todo += [*value, *value.values()] if isinstance(value, dict) else []
        todo += value if isinstance(value, list) else []
    return None


def _refusal(scope: Scope) -> PlainTextResponse | None:
    if scope["method"] not in WITH_BODY:
        return None
    length = Headers(scope=scope).get("content-length", "")
    if not length.isdigit():
        return PlainTextResponse("The length of the request is missing.", status_code=411)
    if int(length) > MAX_BODY_BYTES:
        return PlainTextResponse("The request is too large.", status_code=413)
    return None
