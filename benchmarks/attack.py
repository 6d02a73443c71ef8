"""Attacks on a running app, on loopback: `python benchmarks/attack.py --seconds 10`.

Each attack runs for some seconds against an app with hostile models beside a good one, under
`ulimit -S -n 256`. Meanwhile a well-behaved client asks for the page and for columns of a view, and
logs in where there is a password; it gets answers before and after. Ends with 1 if its median is
500 ms or more, if it was refused, if the app died, or if the log is 1 MB or larger.
"""

import argparse
import http.client
import itertools
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.browser import Server
from helpers.hostile import KINDS, SLOW_TEXT, save_hostile_model
from helpers.models import save_tiny_model

# `ulimit -S -n 256`, which mlx-lm would raise while it is imported.
FEW_FILES = """import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit = lambda *_: None
"""
MAX_MS, MAX_LOG = 500, 10**6
BUSY, PATIENCE = b"the server is busy", 60  # seconds
USER, PASSWORD = "me", "se:cret"
JSON = {"Content-Type": "application/json"}
API = "/gradio_api"
Attack = Callable[["Target"], None]
Headers = dict[str, str] | None


class Target:
    """The app under attack, with the names of its hostile models."""

    def __init__(self, server: Server, models: list[str]) -> None:
        self.server, self.models = server, models
        host, _, port = server.url.split("/")[2].rpartition(":")
        self.address = host, int(port)
        self.over = threading.Event()
        self.numbers = itertools.count()
        self.count = 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Headers = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Return status, content and headers of an answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            end, content = time.monotonic() + PATIENCE, b""
            while news := answer.read1():
                content += news
                if time.monotonic() > end:  # Gradio's heartbeats keep a stuck stream alive
                    raise TimeoutError(f"{method} {path} does not end")
            return answer.status, content, answer.headers
        finally:
            connection.close()

    def post(self, path: str, value: object, **headers: str) -> int:
        return self.ask("POST", API + path, json.dumps(value).encode(), {**JSON, **headers})[0]

    def generate(
        self, text: str, model: str, chat: bool = False, headers: Headers = None
    ) -> tuple[int, bytes]:
        """Ask for three tokens; returns the status and the events of the answer."""
        body = json.dumps({"data": [text, model, chat, 3, 0, 1, 0, False]}).encode()
        path, cookie = f"{API}/call/generate", headers or {}
        status, content, _ = self.ask("POST", path, body, {**JSON, **cookie})
        if status == 200:
            event = json.loads(content)["event_id"]
            status, content, _ = self.ask("GET", f"{path}/{event}", headers=cookie)
        return status, content

    def socket(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=60)
        connection.sendall(sent)
        return connection


def many_values(target: Target) -> None:
    """Many small values, which take long to read: just below their limit, and far above it."""
    for lists in (1_400, 85_000, 650_000):
        target.post("/queue/join", {"data": [[]] * lists})


def deep_values(target: Target) -> None:
    target.ask("POST", f"{API}/queue/join", b"[" * 200_000, JSON)


def large_body(target: Target) -> None:
    head = f"POST {API}/queue/join HTTP/1.1\r\nHost: 127.0.0.1:{target.address[1]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {10**9}\r\n\r\n"
    with target.socket(head.encode()) as connection:
        while not target.over.is_set():
            connection.sendall(b" " * 2**20)


def idle(target: Target) -> None:
    """300 connections that say nothing, half a header or half a body."""
    head = f"POST {API}/queue/join HTTP/1.1\r\nHost: 127.0.0.1:{target.address[1]}\r\n"
    body = head + "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    held = [target.socket((b"", head.encode(), body.encode())[n % 3]) for n in range(300)]
    target.over.wait(5)
    for connection in held:
        connection.close()


def unread(target: Target) -> None:
    """Answers that nobody reads."""
    head = f"GET /config HTTP/1.1\r\nHost: 127.0.0.1:{target.address[1]}\r\n\r\n"
    held = [target.socket(head.encode() * 50) for _ in range(10)]
    target.over.wait(5)
    for connection in held:
        connection.close()


def garbage(target: Target) -> None:
    for content in (b"\x16\x03\x01" * 99, b"GET / HTTP/9\r\n\r\n", b"A" * 100_000):
        with target.socket(content) as connection:
            connection.recv(1000)


def guesses(target: Target) -> None:
    form = urlencode({"username": USER, "password": f"wrong {next(target.numbers)}"}).encode()
    target.ask("POST", "/login", form, {"Content-Type": "application/x-www-form-urlencoded"})


def unknown_ids(target: Target) -> None:
    name = f"x{next(target.numbers)}"
    target.ask("GET", f"{API}/queue/data?session_hash={name}")
    target.ask("GET", f"{API}/call/generate/{name}")
    target.post("/component_server", {"data": 1, "component_id": 9999, "fn_name": "x"})
    target.post("/queue/join", {"data": [], "fn_index": 9999, "session_hash": name})
    target.post(f"/call/v2/{name}", {})
    target.post("/cancel", {"session_hash": name, "fn_index": 0, "event_id": name})


def closed_routes(target: Target) -> None:
    for path in ("deep_link?session_hash=x", "upload", "heartbeat/x", "proxy=http://127.0.0.1:1/"):
        assert target.ask("GET", f"{API}/{path}")[0] == 403, path
    assert target.ask("GET", f"{API}/file=/etc/passwd")[0] == 403


def other_sites(target: Target) -> None:
    for origin in ("http://localhost:1", "http://evil.example", "null"):
        assert target.post("/call/generate", {"data": ["x"]}, Origin=origin) == 403
        _, _, headers = target.ask("GET", "/config", headers={"Origin": origin})
        assert "access-control-allow-origin" not in headers, origin


def hostile_models(target: Target) -> None:
    model = target.models[next(target.numbers) % len(target.models)]
    target.generate(SLOW_TEXT, model, chat=True)


def many_requests(target: Target) -> None:
    """Join the queue and fetch no answer."""
    target.post("/call/generate", {"data": ["x", "good", False, 1024, 1, 1, 0, True]})
    target.post("/call/generate", {"data": ["too few values"]})


# Attack, threads, and if the app asks for a password.
ATTACKS: list[tuple[Attack, int, bool]] = [
    (many_values, 4, True),
    (many_values, 4, False),
    (deep_values, 4, False),
    (large_body, 4, False),
    (idle, 1, False),
    (unread, 1, False),
    (garbage, 4, False),
    (guesses, 40, True),
    (unknown_ids, 4, False),
    (closed_routes, 2, False),
    (other_sites, 2, False),
    (hostile_models, 2, False),
    (many_requests, 2, False),
]


class Client:
    """A well-behaved client, who measures how long its requests take."""

    def __init__(self, target: Target, locked: bool) -> None:
        self.target, self.locked = target, locked
        self.milliseconds: list[float] = []
        self.problems: list[str] = []
        self.cookie = self._login() if locked else {}

    def use(self) -> None:
        """Make one request of each kind."""
        self._timed("page", lambda: self.target.ask("GET", "/", headers=self.cookie)[0])
        self._timed("view", self._view)
        if self.locked:
            self._timed("login", lambda: 200 if self._login() else 0)

    def answer(self) -> None:
        """Get an answer of three tokens; not timed, as others may be before it in the queue."""
        end, status, content = time.monotonic() + PATIENCE, 200, BUSY
        try:
            while BUSY in content and time.monotonic() < end:
                status, content = self.target.generate("abc", "good", headers=self.cookie)
        except OSError as error:
            self.problems.append(f"no answer: {error!r}")
        if b"event: complete" not in content:
            self.problems.append(f"no answer: {status} {content[:200]!r}")

    def _view(self) -> int:
        value = {
            "component_id": 1,
            "fn_name": "columns",
            "session_hash": "me",
            "data": ["x", 0, 0, 0],
        }
        status = self.target.post("/component_server", value, **self.cookie)
        return 200 if status == 404 else status  # component 1 is no view; the way there is the same

    def _login(self) -> dict[str, str]:
        form = urlencode({"username": USER, "password": PASSWORD}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        status, _, headers = self.target.ask("POST", "/login", form, kind)
        if status != 200:
            self.problems.append(f"the right password got {status}")
        return {"Cookie": "; ".join(c.split(";")[0] for c in headers.get_all("set-cookie", []))}

    def _timed(self, what: str, request: Callable[[], int]) -> None:
        began = time.perf_counter()
        try:
            status = request()
        except OSError as error:
            self.problems.append(f"{what}: {error!r}")
            return
        self.milliseconds.append(1000 * (time.perf_counter() - began))
        if status != 200:
            self.problems.append(f"{what}: {status}")


@contextmanager
def attacked(target: Target, attack: Attack, threads: int) -> Iterator[None]:
    """Let an attack run within a block."""

    def work() -> None:
        while not target.over.is_set():
            try:
                attack(target)
            except OSError:  # the server closed the connection
                target.over.wait(0.01)
            target.count += 1

    target.over.clear()
    target.count = 0
    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        target.over.set()
        for worker in workers:
            worker.join()


def run(target: Target, seconds: float, locked: bool, max_ms: float) -> list[str]:
    """Run the attacks on an app, print a line for each; returns the problems."""
    problems = []
    for attack, threads, on_locked in ATTACKS:
        if on_locked != locked:
            continue
        client = Client(target, locked)
        client.answer()
        with attacked(target, attack, threads):
            end = time.monotonic() + seconds
            while time.monotonic() < end or not client.milliseconds:
                client.use()
                time.sleep(0.02)
        client.answer()
        usual = median(client.milliseconds)
        size = target.server.log.stat().st_size
        name = attack.__name__.replace("_", " ") + (", with a password" if locked else "")
        print(
            f"| {name} | {threads} | {target.count / seconds:,.0f} | {usual:,.0f} "
            f"| {max(client.milliseconds):,.0f} | {size / 1000:,.0f} |",
            flush=True,
        )
        problems += [f"{name}: {problem}" for problem in client.problems]
        if usual >= max_ms:
            problems.append(f"{name}: {usual:.0f} ms in the median")
        if target.server.process.poll() is not None:
            return [*problems, f"{name}: the app has ended"]
        if size >= MAX_LOG:
            problems.append(f"{name}: a log of {size} bytes")
    return problems


def attack_app(
    folder: Path, seconds: float, locked: bool = False, max_ms: float = MAX_MS
) -> list[str]:
    """Start an app on hostile models and attack it; return the problems.

    Each attack lasts some seconds; the client's median may take `max_ms`.
    """
    models = folder / "models"
    save_tiny_model(models / "good", chat=True, hidden_size=16, intermediate_size=32)
    names = [save_hostile_model(models / k.replace(" ", "-"), k).name for k in KINDS]
    arguments = ["--models", models, "--model", "good", "--conversations", folder / "kept"]
    arguments += ["--auth", f"{USER}:{PASSWORD}"] if locked else []
    server = Server(folder / "log", *arguments, prelude=FEW_FILES)
    try:
        problems = run(Target(server, names), seconds, locked, max_ms)
    finally:
        code = server.stop()
    return problems if code == 130 else [*problems, f"the app ended with {code}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="of each attack")
    arguments = parser.parse_args()
    if not arguments.seconds > 0:
        parser.error(f"--seconds {arguments.seconds:g}: expected more than 0")
    problems = []
    print("| attack | threads | attacks/s | median, ms | longest, ms | log, kB |")
    print("|---|---:|---:|---:|---:|---:|")
    for locked in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            problems += attack_app(Path(folder), arguments.seconds, locked)
    print(*(problems or ["no problems"]), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
