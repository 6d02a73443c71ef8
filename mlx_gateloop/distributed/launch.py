"""A command over the ranks that mlx.launch starts: its output, its end, and the reason for that."""

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_gateloop.distributed.events import Stream
from mlx_gateloop.distributed.hosts import LOCAL, PORT, SSH_FAILED, Host, Hostfile, free_ports

MLX_LAUNCH = "from mlx_gateloop.distributed.events import mlx_launch; mlx_launch({!r})"
STOPPING = 2.0  # seconds for ranks that have not joined to hear that it is over
GRACE = 10.0  # seconds beyond the limit of an exchange in which all ranks must have ended


@dataclass(frozen=True)
class Settings:
    """The settings of a launch.

    Args:
        hostfile: The machine of each rank, and MLX's engine.
        port: The first rank's port; None takes free ones if all ranks are here.
        python: The interpreter on each machine.
        limit: Seconds that an exchange may wait for other ranks.
        start_limit: Seconds in which all ranks must have joined.
    """

    hostfile: Hostfile
    port: int | None
    python: str
    limit: float
    start_limit: float

    @property
    def hosts(self) -> list[Host]:
        return self.hostfile.hosts


def launch(settings: Settings, argv: list[str], restarts: int) -> int:
    """Run a `gateloop` command on all ranks.

    Args:
        settings: Where and how.
        argv: The command.
        restarts: Number of times that a run which lost a rank is continued.

    Returns:
        The exit code: 0 done on all ranks, 2 wrong input on one, 130 interrupted, 1 failed.
    """
    for attempt in range(restarts + 1):
        code = Attempt(settings, argv, restarted=attempt > 0).run()
        if code != 1:
            break
        if attempt < restarts:
            print(f"restart {attempt + 1} of {restarts}", file=sys.stderr, flush=True)
    return code


class Attempt:
    """One start of all ranks, until the last of them has ended."""

    def __init__(self, settings: Settings, argv: list[str], restarted: bool) -> None:
        self._settings, self._argv, self._restarted = settings, argv, restarted
        self._key = secrets.token_hex(8)
        self._started: set[int] = set()
        self._joined: set[int] = set()
        self._exits: dict[int, int] = {}  # exit codes that mlx.launch has seen
        self._ended: dict[int, tuple[int, str]] = {}  # code and last line of a rank
        self._first_end = time.monotonic()
        self._join_by = self._first_end + settings.start_limit
        self._interrupts = 0

    def run(self) -> int:
        with tempfile.TemporaryDirectory() as place, self._processes(Path(place)) as process:
            self._follow(process)
        return self._conclude()

    @contextmanager
    def _processes(self, place: Path) -> "Iterator[subprocess.Popen[bytes]]":
        """Start mlx.launch in a session of its own, and leave no process of it behind."""
        settings, hosts = self._settings, self._settings.hosts
        (place / "hosts.json").write_text(json.dumps(asdict(settings.hostfile)))
        ports = sum(len(host.ips) for host in hosts)
        port = settings.port or (free_ports(ports) if settings.hostfile.is_here else PORT)
        words = [
            sys.executable,
            "-c",
            MLX_LAUNCH.format(self._key),
            "--hostfile",
            str(place / "hosts.json"),
        ]
        words += ["--backend", settings.hostfile.backend, "--starting-port", str(port)]
        rank = {
            "key": self._key,
            "hosts": [host.ssh for host in hosts],
            "backend": settings.hostfile.backend.partition("-")[0],
            "limit": settings.limit,
            "terminal": sys.stderr.isatty(),
            "restarted": self._restarted,
        }
        words += [
            "--",
            settings.python,
            "-m",
            "mlx_gateloop.distributed.rank",
            json.dumps(rank),
            *self._argv,
        ]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        requests = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(request, self._interrupt) for request in requests]
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            for request, handler in zip(requests, previous, strict=True):
                signal.signal(request, handler)

    def _interrupt(self, *_: object) -> None:
        self._interrupts += 1
        self._join_by = min(self._join_by, time.monotonic() + STOPPING)

    def _follow(self, process: "subprocess.Popen[bytes]") -> None:
        """Show the output and take the events, until all ranks have ended or a limit has passed."""
        told = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for pipe, shown in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert pipe
                selector.register(pipe, selectors.EVENT_READ, (Stream(self._key), shown))
            while selector.get_map() and not self._is_overdue() and self._interrupts < 2:
                for key, _ in selector.select(timeout=0.2):
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    stream, shown = key.data
                    text, events = stream.read(data)
                    shown.write(text.decode(errors="replace"))
                    shown.flush()
                    for event in events:
                        self._take(event)
                if self._interrupts or time.monotonic() > told + self._settings.limit / 8:
                    told = time.monotonic()
                    self._tell(process, b"stop\n" if self._interrupts else b"go on\n")

    def _tell(self, process: "subprocess.Popen[bytes]", word: bytes) -> None:
        """Write to all ranks, which stop when they hear nothing for the limit of an exchange."""
        assert process.stdin
        with suppress(OSError):
            process.stdin.write(word)
            process.stdin.flush()

    def _take(self, event: dict[str, Any]) -> None:
        rank = event["rank"]
        if "started" in event:
            self._started.add(rank)
        elif "joined" in event:
            self._joined.add(rank)
        else:
            if not (self._ended or self._exits):
                self._first_end = time.monotonic()
            if "exit" in event:
                self._exits[rank] = event["exit"]
            else:
                self._ended[rank] = event["code"], event["line"]

    def _is_overdue(self) -> bool:
        """Tell if ranks have not joined in time, or have not ended soon after the first did."""
        now, settings = time.monotonic(), self._settings
        missing = len(self._joined) < len(settings.hosts)
        if self._ended or self._exits:
            wrong = any(code == 2 for code, _ in self._ended.values())  # no rank has more to save
            rest = STOPPING if missing else GRACE if wrong else settings.limit + GRACE
            return now > self._first_end + rest
        return missing and now > self._join_by

    def _conclude(self) -> int:
        """Say why the command ended, and choose the exit code."""
        ended, ranks = self._ended, range(len(self._settings.hosts))
        codes = {code for code, _ in ended.values()}
        silent = [rank for rank in ranks if rank not in ended]
        if 2 in codes:
            lines = [line for code, line in ended.values() if code == 2]
            for line in dict.fromkeys(lines):
                rank = next(rank for rank in ended if ended[rank] == (2, line))
                place = f"{self._name(rank)}: " if lines.count(line) == 1 else ""
                self._say(f"error: {place}{line.removeprefix('error: ')}")
            return 2
        if codes <= {0, 130} and not silent:
            self._say(ended[0][1])
            return max(codes)
        for rank, (code, line) in sorted(ended.items()):
            if code == 1:
                self._say(f"{self._name(rank)}: {line}")
        missing = len(self._joined) < len(ranks)
        if self._interrupts and (missing or self._interrupts > 1):
            return 130
        if missing and not ended and not self._restarted:
            self._say(f"error: {self._reason_of_no_start()}")
            return 2
        if silent:
            names = " and ".join(map(self._name, silent))
            self._say(
                f"error: {names}: lost (killed, stopped or unreachable); what was saved is whole, "
                "continue with --resume"
            )
        return 1

    def _reason_of_no_start(self) -> str:
        settings = self._settings
        failed = [rank for rank, code in self._exits.items() if code > 0]
        for rank in (*failed, *range(len(settings.hosts))):
            if rank not in self._started:
                host, way = settings.hosts[rank].ssh, f"{settings.python} --version"
                if host != LOCAL:
                    way = f"ssh {host} {'true' if self._exits.get(rank) == SSH_FAILED else way}"
                return f"{self._name(rank)} did not start; see if `{way}` works"
        missing = [rank for rank in range(len(settings.hosts)) if rank not in self._joined]
        names = " and ".join(map(self._name, missing))
        return (
            f"{names}: not connected after {settings.start_limit:g} s; see that the machines reach "
            "each other's ips at these ports"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._settings.hosts[rank].ssh}"

    @staticmethod
    def _say(line: str) -> None:
        if line:
            print(line, file=sys.stderr, flush=True)
