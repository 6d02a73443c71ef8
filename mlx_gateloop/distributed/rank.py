"""One rank of `gateloop launch`: `python -m mlx_gateloop.distributed.rank JSON COMMAND`."""

import io
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from mlx_gateloop import __version__
from mlx_gateloop.cli import run
from mlx_gateloop.commands.parser import parse
from mlx_gateloop.distributed.hosts import require_free
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.machine import pin_cpus


def send(**event: Any) -> None:
    """Print an event for the launcher, on a line of its own even after an unfinished one."""
    print(f"\n{json.dumps(event)}", file=sys.__stdout__, flush=True)


class TextEvents(io.TextIOBase):
    """A standard output that turns its text into events."""

    def write(self, text: str) -> int:
        send(text=text)
        return len(text)


def main(settings: dict[str, Any], argv: list[str]) -> NoReturn:
    """Run a command as one of several ranks, report its end to the launcher, and exit.

    `settings` have `rank`; `hosts` by rank; `backend`, `variables` and `files` of
    `Hostfile.variables`; `listens_at`; `limit` in seconds; `terminal`; `restarted` after a failure.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `_watch_launcher` sends it
    ending, joined = threading.Lock(), threading.Event()

    def end(code: int, line: str) -> NoReturn:
        ending.acquire()  # for good: one thread ends the process
        send(code=code, line=line)
        os._exit(code)  # nothing waits for MLX's threads, which may hang

    def expired(exchange: str) -> NoReturn:
        end(1, f"no answer of the other ranks in the {exchange} for {settings['limit']:g} s")

    threading.Thread(target=_watch_launcher, args=[settings["limit"], joined], daemon=True).start()
    send(started=True)
    hosts, rank = settings["hosts"], settings["rank"]
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    if len(here) > 1:
        pin_cpus(here.index(rank), len(here))
    code, line = 1, ""
    try:
        for address in settings["listens_at"] if len(hosts) > 1 else []:
            host, _, port = address.rpartition(":")
            require_free(host, int(port))
        world = _join(settings, expired)
        joined.set()
        send(joined=True)
        world.assert_equal({"mlx-gateloop": __version__, "MLX": version("mlx")})
        _set_streams(world.is_first, settings["terminal"])
        if settings["restarted"]:
            argv = world.broadcast(partial(_resumed, argv), "command")
        code, line = run(argv, world)
    except InputError as error:
        code, line = 2, f"error: {error}"
    except BaseException as error:
        line = one_line(error)
        if type(error).__name__ != "PeerLost":
            traceback.print_exc(file=sys.__stderr__)
    sys.stdout.flush()
    sys.stderr.flush()
    end(code, line)


def _join(settings: dict[str, Any], expired: Any) -> Any:
    """Connect to the other ranks; MLX may wait for ever here, and the launcher ends that."""
    import mlx.core as mx

    from mlx_gateloop.distributed.world import World

    if len(settings["hosts"]) == 1:
        return World()
    with TemporaryDirectory() as folder:
        os.environ |= settings["variables"]
        for name, content in settings["files"].items():
            os.environ[name] = str(Path(folder) / name)
            Path(folder, name).write_text(content)
        try:
            group = mx.distributed.init(strict=True, backend=settings["backend"])
        except (RuntimeError, ValueError) as error:
            raise InputError(f"cannot connect to the next rank ({one_line(error)})") from None
    overlaps = mx.default_device() != mx.Device(mx.cpu)
    return World(group, settings["hosts"], TimeLimit(settings["limit"], expired), overlaps=overlaps)


class TimeLimit:
    """A limit of seconds for each block; a thread calls `expired` with the name of a late one.

    One thread watches all blocks: a timer for each would cost every exchange a new one.
    """

    def __init__(self, seconds: float, expired: Callable[[str], object]) -> None:
        self._seconds, self._expired = seconds, expired
        self._deadline, self._name = inf, ""
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._name, self._deadline = name, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._deadline = inf

    def _watch(self) -> None:
        while True:
            time.sleep(min(0.5, self._seconds / 4))
            if time.monotonic() > self._deadline:
                self._expired(self._name)


def _watch_launcher(limit: float, joined: threading.Event) -> None:
    """Take the launcher's word to stop, its end, or its silence, as Ctrl-C."""
    word = b"go on"
    while word and b"stop" not in word:
        word = os.read(0, 4096) if select.select([0], [], [], limit)[0] else b""
    os.kill(os.getpid(), signal.SIGINT)
    if not word:  # nobody else ends this process if it hangs in MLX
        time.sleep(10 * limit if joined.is_set() else 1)
        os._exit(130)


class _Terminal(io.TextIOWrapper):
    """A standard error that the launcher shows on a terminal."""

    def isatty(self) -> bool:
        return True


def _set_streams(is_first: bool, terminal: bool) -> None:
    """Show the first rank alone, with its progress bar if the launcher has a terminal."""
    if not is_first:
        sys.stdout = sys.stderr = io.StringIO()
        return
    sys.stdout = TextEvents()
    if terminal:
        sys.stderr = _Terminal(sys.stderr.buffer, line_buffering=True)


def _resumed(argv: list[str]) -> list[str]:
    """The command line that continues what a failed attempt had saved."""
    arguments = parse(argv)
    if not hasattr(arguments, "resume") or arguments.resume or not arguments.out:
        return argv
    has_checkpoint = any((arguments.out / "checkpoints").glob("[!.]*"))
    return [*argv, "--resume"] if has_checkpoint else argv


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
