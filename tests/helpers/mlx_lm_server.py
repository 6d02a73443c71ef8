"""`gateloop mlx-lm server` as a process: for tests and benchmarks."""

import http.client
import json
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from mlx_gateloop.distributed.hosts import free_ports

OURS = (sys.executable, "-m", "mlx_gateloop", "mlx-lm")
PATIENCE = 180  # seconds
ATTEMPTS = 10


@dataclass(frozen=True)
class Server:
    """A server that has begun to answer."""

    process: subprocess.Popen[bytes]
    port: int

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def post(self, path, body):
        """Send a request and read the whole answer; Linux resets some beyond five that wait."""
        for _ in range(ATTEMPTS):
            with suppress(ConnectionResetError):
                return self._request("POST", path, json.dumps(body).encode())
        raise ConnectionResetError(f"{ATTEMPTS} times")

    def _request(self, method, path, data=b""):
        with closing(self.connect()) as connection:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def is_healthy(self):
        with suppress(OSError):
            return self._request("GET", "/health")[0] == 200
        return False


@contextmanager
def serving(model, log, *options, mlx_lm=OURS):
    port = free_ports(1)
    command = [*mlx_lm, "server", "--model", model, "--port", port, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out)
    server = Server(process, port)
    try:
        end = time.monotonic() + PATIENCE
        while not server.is_healthy():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait()


def text_of(answer):
    if answer.startswith(b"{"):
        parts = [json.loads(answer)]
    else:
        lines = [line for line in answer.decode().split("\n") if line.startswith("data: {")]
        parts = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert answer.endswith(b"data: [DONE]\n\n"), "the stream broke off"
    texts = []
    for choice in (part["choices"][0] for part in parts):
        message = choice.get("message") or choice.get("delta") or {}
        texts.append(choice.get("text") or message.get("content") or "")
    return "".join(texts)
