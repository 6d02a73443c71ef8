"""The port of the server, and its memory."""

import platform
import socket
import subprocess
import sys

import pytest
from mlx_gateloop.app import server

from mlx_gateloop.errors import InputError


def test_a_busy_port_gives_way_to_the_next_one_unless_it_was_asked_for(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(server, "PORTS", range(port, min(port + 50, 65536)))
        assert server._free_port("127.0.0.1", None) > port
        with pytest.raises(
            InputError, match=f"--port {port}: Address already in use; give another"
        ):
            server._free_port("127.0.0.1", port)
        monkeypatch.setattr(server, "PORTS", range(port, port + 1))
        with pytest.raises(InputError, match="are all in use; give another one"):
            server._free_port("127.0.0.1", None)


ARENAS = """
import ctypes, threading
from mlx_gateloop.app.server import share_arenas
share_arenas()
together = threading.Barrier(8)
def take():
    blocks = [ctypes.create_string_buffer(20_000) for _ in range(50)]
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_two_arenas():
    child = subprocess.run(
        [sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True, timeout=120
    )
    assert 1 <= child.stderr.count("Arena ") <= 2


def test_a_foreign_address_is_named():
    with pytest.raises(InputError, match=r"^--host 192.0.2.1 --port 7860: .*; give another port$"):
        server._free_port("192.0.2.1", None)
