"""The start and the end of the server."""

import socket
import webbrowser
from types import SimpleNamespace

import pytest
from helpers.errors import refusal
from mlx_gateloop.app.server import launch


def test_a_busy_port_gives_way_to_the_next_one_unless_it_was_asked_for(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(launch, "PORTS", range(port, min(port + 50, 65536)))
        with launch._listen("127.0.0.1", None) as free:
            assert free.getsockname()[1] > port
        line = refusal(launch._listen, "127.0.0.1", port)
        assert f"--port {port}: Address already in use" in line
        monkeypatch.setattr(launch, "PORTS", range(port, port + 1))
        assert "are all in use; give another port" in refusal(launch._listen, "127.0.0.1", None)
    assert refusal(launch._listen, "192.0.2.1", 7860).startswith("--host 192.0.2.1 --port 7860: ")


@pytest.mark.parametrize(("name", "opened"), [("firefox", True), ("/usr/bin/lynx", False)])
def test_no_browser_takes_the_terminal(monkeypatch, name, opened):
    asked = []
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(name=name, open=asked.append))
    launch._open("http://here/")
    assert bool(asked) == opened
