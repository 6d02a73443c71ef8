"""The script of docs/watching.md records what mlx-lm's chat and server answer."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.recurrent import save_recurrent_model

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
SCRIPT = next(
    code
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if "server.main()" in code
).replace("models/mine", "model")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return save_recurrent_model(tmp_path / "model", "falcon_h1")


def recorded(tokens):
    with np.load("trace.npz") as trace:
        assert trace["names"].tolist() == [f"model.layers.{n}.mamba" for n in range(2)]
        assert trace["magnitude"].shape[1] >= tokens


def test_a_chat_is_recorded(model, monkeypatch, capsys):
    from mlx_lm import chat

    said = iter(["hello", "q"])
    monkeypatch.setattr("builtins.input", lambda *_: next(said))
    monkeypatch.setattr(chat, "load", chat.load)  # is put back
    monkeypatch.setattr(sys, "argv", ["chat", "--model", "model", "--max-tokens", "4"])
    exec(SCRIPT.replace("server", "chat").replace(", return_config=True", ""), {})
    recorded(len("hello") + 4)


@pytest.mark.slow
def test_a_server_is_recorded(model):
    Path("script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "script.py", "--model", "model", "--port", str(port)]
    server = subprocess.Popen(command)
    body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    end = time.monotonic() + 120
    try:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(head + body)
                    # To the end of the connection, after which its thread writes nothing: Python
                    # aborts where it exits while a daemon thread writes to a standard stream.
                    answer = b"".join(iter(lambda: connection.recv(4096), b""))
                assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"]
                break
            except OSError:  # it is not there yet
                assert time.monotonic() < end
                time.sleep(0.2)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    recorded(len("hello") + 3)
