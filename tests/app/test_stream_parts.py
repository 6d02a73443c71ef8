"""Streams that the page fetches in parts."""

import asyncio

import pytest
from mlx_gateloop.app import stream_parts
from mlx_gateloop.app.stream_parts import StreamParts
from starlette.responses import PlainTextResponse


class Source:
    """An app whose stream sends what it is given; None ends it, an error is raised."""

    def __init__(self):
        self.given, self.calls, self.left = asyncio.Queue(), 0, asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.calls += 1
        assert (b"accept-encoding", b"br") not in scope["headers"]
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": [(b"content-type", b"text/event-stream")]})
        gone = asyncio.create_task(receive())
        gone.add_done_callback(lambda task: self.left.set())
        while (content := await self.given.get()) is not None:
            if isinstance(content, Exception):
                raise content
            await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        gone.cancel()


async def ask(app, stream, part, path=stream_parts.PATH):
    """The status, the content and whether it is the last part."""
    messages = []

    async def send(message):
        messages.append(message)

    headers = [(b"accept-encoding", b"br")]
    if stream is not None:
        headers += [(b"stream", stream.encode()), (b"part", str(part).encode())]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    await app(scope, None, send)
    start, body = messages
    return start["status"], body["body"], (b"stream-part", b"last") in start["headers"]


@pytest.fixture
def source():
    return Source()


def test_a_stream_comes_in_parts(source):
    async def work():
        app = StreamParts(source)
        await source.given.put(b"one")
        assert await ask(app, "s", 0) == (200, b"one", False)
        assert await ask(app, "s", 1) == (200, b"", False)  # nothing new within a moment
        asked = asyncio.create_task(ask(app, "s", 2))
        await source.given.put(b"two")
        assert await asked == (200, b"two", False)
        await source.given.put(b"three")
        await source.given.put(None)
        content, last = b"", False
        while not last:
            _, news, last = await ask(app, "s", 3)
            content += news
        assert content == b"three"
        assert source.calls == 1
        assert (await ask(app, "s", 4))[0] == 404
        assert not app._streams

    asyncio.run(work())


def test_an_error_comes_after_what_was_said_before(source):
    async def work():
        app = StreamParts(source)
        await source.given.put(b"unknown")
        await source.given.put(KeyError("session"))
        assert (await ask(app, "s", 0))[:2] == (200, b"unknown")
        with pytest.raises(KeyError):
            await ask(app, "s", 1)

    asyncio.run(work())


@pytest.mark.parametrize("how", ["end", "silence"])
def test_gradio_hears_that_a_page_has_left(source, how, monkeypatch):
    monkeypatch.setattr(stream_parts, "LEFT_SECONDS", 0.3 if how == "silence" else 1000)

    async def work():
        app = StreamParts(source)
        await ask(app, "s", 0)
        if how == "end":
            assert (await ask(app, "s", "end"))[0] == 200
        await asyncio.wait_for(source.left.wait(), 120)
        assert not app._streams
        await source.given.put(None)

    asyncio.run(work())


def test_streams_are_limited_and_never_shared(source, monkeypatch):
    monkeypatch.setattr(stream_parts, "MOST_STREAMS", 2)

    async def work():
        app = StreamParts(source)
        assert (await ask(app, "a", 1))[0] == 404
        for stream, status in (("a", 200), ("b", 200), ("c", 503)):
            assert (await ask(app, stream, 0))[0] == status
        assert source.calls == 2
        for stream in "ab":
            await ask(app, stream, "end")
            await source.given.put(None)

    asyncio.run(work())


def test_other_requests_pass():
    async def work():
        async def app(scope, receive, send):
            await PlainTextResponse("whole")(scope, receive, send)

        assert (await ask(StreamParts(app), None, None))[1] == b"whole"
        assert (await ask(StreamParts(app), "s", 0, "/config"))[1] == b"whole"

    asyncio.run(work())
