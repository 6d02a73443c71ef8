"""Gradio's event streams in parts, so that all tabs can share the six connections of a browser.

A stream that stays open takes one of them. The request for a part ends within a moment.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/gradio_api/queue/data"
PART_SECONDS = 0.25  # that a request waits for something new
LEFT_SECONDS = 30  # without a request: the page is gone, or its machine sleeps
MOST_STREAMS = 256


class StreamParts:
    """Answers the requests of static/stream_parts.js; others get the stream as it is.

    The header `stream` is an id that the page keeps to itself; `part` is 0 to start the stream, the
    next number to go on with it, and "end" to end it.

    Args:
        app: Gradio's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._streams: dict[str, _Stream] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "stream" in headers and scope["path"] == PATH:
            answer = await self._answer(headers["stream"], headers.get("part"), scope)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, id: str, part: str | None, scope: Scope) -> Response:
        if part == "0" and id not in self._streams:
            if len(self._streams) >= MOST_STREAMS:
                return Response("There are too many streams; try again in a moment.", 503)
            self._streams[id] = _Stream(self._app, scope)
        if part == "end":
            self._forget(id)
            return Response()
        stream = self._streams.get(id)
        if stream is None:
            return Response("There is no such stream.", 404)
        stream.expect(self._forget, id)
        content = await stream.news()
        if stream.ended:
            self._forget(id)
        more = {"stream-part": "last" if stream.ended else "more"}
        return Response(content, stream.status, more, stream.content_type)

    def _forget(self, id: str) -> None:
        stream = self._streams.pop(id, None)
        if stream is not None:
            stream.leave()


class _Stream:
    """A request to Gradio whose answer waits here for the page to fetch it."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        self.status, self.content_type, self.ended = 200, "text/event-stream", False
        self._content = bytearray()
        self._changed, self._left = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # parts of a compressed stream would be of no use
        plain = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        self._task = asyncio.create_task(self._run(app, {**scope, "headers": plain}))
        self._task.add_done_callback(self._done)

    def expect(self, forget: Callable[[str], None], id: str) -> None:
        """Forget the stream unless this is called again in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LEFT_SECONDS, forget, id)

    async def news(self) -> bytes:
        """Wait a moment for something new and return it; raises what Gradio raised at the end."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), PART_SECONDS)
        self._changed.clear()
        content, self._content = bytes(self._content), bytearray()
        if self._task.done() and not content:
            self._task.result()
        self.ended = self._task.done() and not self._task.exception()
        return content

    def leave(self) -> None:
        """Tell Gradio that nobody listens any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._left.set()

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self._receive, self._send)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # seen, even if nobody asks for another part
        self._changed.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self.status = message["status"]
            self.content_type = headers.get("content-type", self.content_type)
        else:
            self._content += message.get("body", b"")
            self._changed.set()
