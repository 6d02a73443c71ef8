"""Connections that are closed, over real sockets."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest
from helpers.waiting import wait_for
from mlx_gateloop.app.server import connections
from starlette.responses import PlainTextResponse
from uvicorn import Config, Server

PATIENCE = 60  # seconds; a busy machine may need many of them
HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"
WHOLE = HALF + b"\r\n"
SLOW = WHOLE.replace(b"/", b"/slow", 1)
HALF_A_BODY = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
LARGE = 64 * 2**20


@pytest.fixture
def go_on():
    return threading.Event()


@pytest.fixture
def connect(go_on):
    """Connects to a server with these limits; its app answers "/slow" when it may go on."""
    sockets = []

    async def app(scope, receive, send):
        if scope["path"] == "/slow":
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        content = "x" * LARGE if scope["path"] == "/large" else "fine"
        await PlainTextResponse(content)(scope, receive, send)

    config = Config(app, port=0, http=connections.Connection, ws="none", log_level="error")
    config.lifespan = "off"
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    address = server.servers[0].sockets[0].getsockname()

    def connect(sent=b""):
        sockets.append(socket.create_connection(address, timeout=PATIENCE))
        sockets[-1].sendall(sent)
        return sockets[-1]

    connect.state = server.server_state
    yield connect
    go_on.set()
    for each in sockets:
        each.close()
    server.should_exit = True
    thread.join()


def received(connection, end=b"\0"):
    content = b""
    with suppress(ConnectionResetError):
        while not content.endswith(end) and (part := connection.recv(2**20)):
            content += part
    return content


def is_answered(connection):
    return received(connection, b"fine").endswith(b"fine")


def test_connections_that_keep_us_waiting_are_closed_others_kept(connect, go_on, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    working, idle, half, again = connect(SLOW), connect(), connect(HALF), connect(WHOLE)
    assert is_answered(again)
    again.sendall(HALF)  # which ends uvicorn's own wait
    assert received(idle) == received(half) == received(again) == b""
    slow = connect(HALF)
    with pytest.raises(OSError):
        wait_for(lambda: slow.sendall(b"x"))  # a byte does not keep the connection alive
    go_on.set()
    assert is_answered(working)


def test_an_answer_that_nobody_reads_is_given_up(connect, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    reader = connect(WHOLE.replace(b"/", b"/large", 1))
    wait_for(lambda: connect.state.total_requests or connect.state.connections)
    wait_for(lambda: not connect.state.connections)
    assert len(received(reader)) < LARGE


def test_at_the_limit_the_longest_idle_connection_gives_way(connect, go_on, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1000)
    monkeypatch.setattr(connections, "max_connections", lambda: 4)
    working = connect(SLOW)
    wait_for(lambda: connect.state.tasks)
    idle = [connect() for _ in range(12)]
    for connection in idle[:9]:
        assert received(connection) == b""
    assert is_answered(connect(WHOLE))
    assert is_answered(connect(WHOLE))
    go_on.set()
    assert is_answered(working)


def test_half_a_request_keeps_nobody_out(connect, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1000)
    monkeypatch.setattr(connections, "max_connections", lambda: 4)
    for count in range(1, 5):
        connect(HALF_A_BODY)
        wait_for(lambda count=count: len(connect.state.tasks) >= count)
    for _ in range(3):
        assert is_answered(connect(WHOLE))


@pytest.mark.parametrize(("files", "most"), [(256, 96), (1024, 512), (64, 32), (-1, 512)])
def test_there_is_always_room_for_files(files, most, monkeypatch):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (files, files))
    assert connections.max_connections() == most
