"""A tokenizer in a separate process with limits of time and memory."""

import contextlib
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mlx_gateloop.errors import InputError, one_line

from ..generation.chat_tokenizer import ChatTokenizer
from ..generation.run import Steps

MAX_REPLY = 64 * 2**20  # bytes; more than the JSON of MAX_CHARACTERS and their tokens
Child = tuple[BaseProcess, Connection]
POLL_SECONDS = 0.001  # the engine waits for a reply, which usually takes a tenth of this


@dataclass(frozen=True)
class Bounds:
    """Limits of a tokenizer process."""

    seconds: int = 5  # CPU time of one call
    loading_seconds: int = 30  # CPU time to load it
    memory: int = 2 * 2**30  # bytes in addition to the imported modules


class InProcess:
    """A tokenizer in this process, with the interface of `Isolated`."""

    def __init__(self, path: str) -> None:
        self.tokenizer = ChatTokenizer(path)

    def call(self, method: str, *arguments: object) -> Steps[Any]:
        """Call a method of `ChatTokenizer`, and return its result."""
        return getattr(self.tokenizer, method)(*arguments)
        yield


class Isolated:
    """A tokenizer in a separate process, restarted if it dies; use it from one thread."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self._path, self._bounds = path, bounds
        self._child: Child | None = None
        self._busy = False
        self._pending = False  # a reply; it is a late one if its caller was stopped

    def call(self, method: str, *arguments: object) -> Steps[Any]:
        while self._busy:  # another run is calling
            yield
        self._busy = True
        try:
            if self._child is None:
                self._child = yield from self._start()
            what = "chat template" if method in ("render", "message_spans") else "tokenizer"
            message = json.dumps([method, *arguments]).encode()
            return (yield from self._ask(self._child, message, what, self._bounds.seconds))
        finally:
            self._busy = False

    def _start(self) -> Steps[Child]:
        here, there = multiprocessing.Pipe()
        thread = ThreadPoolExecutor(1, "tokenizer")  # the first start takes seconds
        started = thread.submit(_start_process, there, self._path, self._bounds)
        thread.shutdown(wait=False)
        while not wait([started], POLL_SECONDS).done:
            yield
        there.close()
        child, self._pending = (started.result(), here), False
        yield from self._ask(child, None, "tokenizer", self._bounds.loading_seconds)
        return child

    def _ask(self, child: Child, message: bytes | None, what: str, seconds: int) -> Steps[Any]:
        """Send a message and return the reply; without a message, wait until it is loaded."""
        process, connection = child
        end = time.monotonic() + 60 + 20 * seconds  # only a process without CPU use lasts longer
        try:
            if self._pending:
                yield from self._receive(connection, end)
            if message is not None:
                connection.send_bytes(message)
            self._pending = True
            reply = json.loads((yield from self._receive(connection, end)))
        except (OSError, EOFError):
            process.kill()
            self._child = None
            limit = f"{seconds} seconds or {self._bounds.memory / 2**30:g} GB of memory"
            reason = f"its {what} was stopped: it takes more than {limit}"
            raise InputError(f"model: {reason}; use another model") from None
        if "error" in reply:
            raise InputError(reply["error"])
        return reply["value"]

    def _receive(self, connection: Connection, end: float) -> Steps[bytes]:
        while not connection.poll(POLL_SECONDS):
            if time.monotonic() > end:
                raise EOFError
            yield
        self._pending = False
        return connection.recv_bytes(MAX_REPLY)


def _start_process(connection: Connection, path: str, bounds: Bounds) -> BaseProcess:
    if sys.platform == "darwin":  # fork is unsafe with Metal's threads
        context = multiprocessing.get_context("spawn")
    else:  # imports modules once, and forks for every model
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "mlx_lm.utils"])
    process = context.Process(target=_serve, args=(connection, path, bounds), daemon=True)
    process.start()
    return process


def _serve(connection: Connection, path: str, bounds: Bounds) -> None:
    """Load the tokenizer and answer calls until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a panic would write there
        os.dup2(nothing, stream)
    os.nice(5)  # the engine comes first
    _limit(bounds.memory)
    loaded: list[ChatTokenizer] = []
    with contextlib.suppress(EOFError, OSError):
        _limit_time(bounds.loading_seconds)
        _answer(connection, lambda: loaded.append(ChatTokenizer(path)))
        while True:
            method, *arguments = json.loads(connection.recv_bytes())
            _limit_time(bounds.seconds)
            _answer(connection, getattr(loaded[0], method), *arguments)


def _answer(connection: Connection, method: Callable[..., object], *arguments: object) -> None:
    try:
        reply = {"value": method(*arguments)}
    except InputError as error:
        reply = {"error": str(error)}
    except BaseException as error:  # including panics
        reply = {"error": f"model: its tokenizer fails: {one_line(error)}"}
    connection.send_bytes(json.dumps(reply).encode())


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # macOS has neither this file nor this limit
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit, _ = _allowed(resource.RLIMIT_AS, pages * resource.getpagesize() + memory)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(seconds: int) -> None:
    """Let the system kill this process after this many more seconds of CPU time."""
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, _allowed(resource.RLIMIT_CPU, end))


def _allowed(kind: int, limit: int) -> tuple[int, int]:
    """Return the soft and the hard limit; the app's own hard limit may be lower."""
    _, hard = resource.getrlimit(kind)
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard
