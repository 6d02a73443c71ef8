"""A command over several ranks: their processes, their output, their end and the reason for it."""

import codecs
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_gateloop.distributed.hosts import LOCAL, SSH_FAILED, Host, Hostfile, free_ports
from mlx_gateloop.io.interrupt import handling

PORT = 32323  # as `mlx.launch` has it
STOPPING = 2.0  # seconds for ranks that have not joined to hear that it is over
GRACE = 10.0  # seconds beyond the limit of an exchange in which all ranks must have ended
# MLX's lines about a lost peer, which it writes in pieces; the rank says it in one line.
NOISE = re.compile(rb"^\[ring\].*(\n|\Z)", re.MULTILINE)
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "LogLevel=QUIET")


@dataclass(frozen=True)
class Settings:
    """The settings of a launch."""

    hostfile: Hostfile
    port: int | None  # the first rank's; None takes free ones if all ranks are here
    python: str  # interpreter on each machine
    limit: float  # seconds that an exchange may wait for other ranks
    start_limit: float  # seconds in which all ranks must have joined


def launch(settings: Settings, argv: list[str], restarts: int) -> int:
    """Run a command on all ranks; return 0, 2 for wrong input on one, 130 interrupted, else 1."""
    for attempt in range(restarts + 1):
        started = Attempt(settings, argv, restarted=attempt > 0)
        if (code := started.run()) != 1 or started.interrupts:
            break
        if attempt < restarts:
            print(f"restart {attempt + 1} of {restarts}", file=sys.stderr, flush=True)
    return code


def received(line: bytes) -> dict[str, Any]:
    """The event of a line of a rank's standard output; what a library prints directly is text."""
    if line.startswith(b"{"):
        with suppress(ValueError):
            return dict(json.loads(line))
    return {"text": line.decode(errors="replace") + "\n"} if line else {}


class Rank:
    """A rank's process, and its reports; `words` is its command line."""

    def __init__(self, number: int, host: Host, words: list[str]) -> None:
        self.name = f"rank {number} on {host.ssh}"
        if host.ssh != LOCAL:
            folder = shlex.quote(str(Path.cwd()))
            words = [*SSH, host.ssh, f"[ -d {folder} ] && cd {folder}; exec {shlex.join(words)}"]
        pipe = subprocess.PIPE  # a terminal's Ctrl-C spares a session of its own
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.started = self.joined = False
        self.code: int | None = None  # as the rank reports it, with its last line
        self.line = ""
        self._rest = self._noise = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # of the standard error

    def read(self, data: bytes) -> None:
        """Take the next bytes of the standard output: show the text, keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = received(line)
            sys.stdout.write(event.get("text", ""))
            self.started |= "started" in event
            self.joined |= "joined" in event
            if "code" in event:
                self.code, self.line = event["code"], event["line"]
        sys.stdout.flush()

    def read_error(self, data: bytes) -> None:
        """Show the next bytes of the standard error, but for MLX's lines about a lost peer."""
        data = self._noise + data
        *_, last = [None, *NOISE.finditer(data)]
        self._noise = last[0] if last and not last[1] else b""
        sys.stderr.write(self._decoder.decode(NOISE.sub(b"", data)))
        sys.stderr.flush()

    def send(self, word: bytes) -> None:
        assert self.process.stdin
        with suppress(OSError):  # it has ended
            self.process.stdin.write(word)
            self.process.stdin.flush()

    def end(self) -> None:
        """Leave no process behind; one that ssh had started ends as its input does."""
        with suppress(ProcessLookupError, PermissionError):  # macOS: it has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class Attempt:
    """One start of all ranks, until the last has ended."""

    def __init__(self, settings: Settings, argv: list[str], restarted: bool) -> None:
        self._settings, self._argv, self._restarted = settings, argv, restarted
        self._ranks: list[Rank] = []
        self._first_end: float | None = None
        self._join_by = time.monotonic() + settings.start_limit
        self.interrupts = 0

    def run(self) -> int:
        with handling(self._interrupt):
            try:
                for number, words in enumerate(self.commands()):
                    self._ranks.append(Rank(number, self._settings.hostfile.hosts[number], words))
                self._follow()
            finally:
                for rank in self._ranks:
                    rank.end()
        return self._conclude()

    def commands(self) -> Iterator[list[str]]:
        settings, hostfile = self._settings, self._settings.hostfile
        count = sum(len(host.ips) for host in hostfile.hosts)
        is_here = all(host.ssh == LOCAL for host in hostfile.hosts)
        port = settings.port or (free_ports(count) if is_here else PORT)
        variables = list(hostfile.envs)
        if sys.stderr.isatty():
            columns, lines = shutil.get_terminal_size()
            variables += [f"COLUMNS={columns}", f"LINES={lines}"]
        for rank in range(len(hostfile.hosts)):
            values, files = hostfile.variables(rank, port)
            settings_of_rank = {
                "rank": rank,
                "hosts": [host.ssh for host in hostfile.hosts],
                "backend": hostfile.backend.partition("-")[0],
                "variables": values,
                "files": files,
                "listens_at": hostfile.addresses(port)[rank] if hostfile.backend == "ring" else [],
                "limit": settings.limit,
                "terminal": sys.stderr.isatty(),
                "restarted": self._restarted,
            }
            module = "mlx_gateloop.distributed.rank"
            command = [settings.python, "-m", module, json.dumps(settings_of_rank), *self._argv]
            yield ["env", *variables, *command]

    def _interrupt(self, *_: object) -> None:
        self.interrupts += 1
        self._join_by = min(self._join_by, time.monotonic() + STOPPING)

    def _follow(self) -> None:
        """Show the output and take the events, until all ranks have ended or a limit has passed."""
        sent = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                out, err = rank.process.stdout, rank.process.stderr
                for pipe, read in ((out, rank.read), (err, rank.read_error)):
                    assert pipe
                    selector.register(pipe, selectors.EVENT_READ, read)
            while selector.get_map() and not self._is_overdue() and self.interrupts < 2:
                for key, _ in selector.select(timeout=0.2):
                    if data := os.read(key.fd, 65536):
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
                if self.interrupts or time.monotonic() > sent + self._settings.limit / 8:
                    sent = time.monotonic()
                    for rank in self._ranks:  # they stop too when they hear nothing for the limit
                        rank.send(b"stop\n" if self.interrupts else b"go on\n")

    def _is_overdue(self) -> bool:
        """Tell if ranks have not joined in time, or have not ended soon after the first did."""
        now, missing = time.monotonic(), not all(rank.joined for rank in self._ranks)
        if all(rank.code is None and rank.process.poll() is None for rank in self._ranks):
            return missing and now > self._join_by
        if self._first_end is None:
            self._first_end = now
        wrong = any(rank.code == 2 for rank in self._ranks)  # no rank has more to save
        rest = STOPPING if missing else GRACE if wrong else self._settings.limit + GRACE
        return now > self._first_end + rest

    def _conclude(self) -> int:
        """Say why the command ended, and choose the exit code."""
        ranks = self._ranks
        wrong, failed = ([rank for rank in ranks if rank.code == code] for code in (2, 1))
        silent = [rank for rank in ranks if rank.code is None]
        if wrong:
            lines = [rank.line for rank in wrong]
            for rank in {rank.line: rank for rank in reversed(wrong)}.values():
                prefix = f"{rank.name}: " if lines.count(rank.line) == 1 else ""
                _say(f"error: {prefix}{rank.line.removeprefix('error: ')}")
            return 2
        if not failed and not silent:
            _say(ranks[0].line)
            return max(rank.code or 0 for rank in ranks)
        for rank in failed:
            _say(f"{rank.name}: {rank.line}")
        missing = [rank for rank in ranks if not rank.joined]
        if self.interrupts and (missing or self.interrupts > 1):
            return 130
        if missing and len(silent) == len(ranks) and not self._restarted:
            _say(f"error: {self._reason_of_no_start(missing)}")
            return 2
        if silent:
            names = " and ".join(rank.name for rank in silent)
            reason = "lost (killed, stopped or unreachable)"
            _say(f"error: {names}: {reason}; what was saved is whole, continue with --resume")
        return 1

    def _reason_of_no_start(self, missing: list[Rank]) -> str:
        settings = self._settings
        codes = [rank.process.returncode for rank in self._ranks]  # negative if we ended it
        for number in sorted(range(len(codes)), key=lambda number: codes[number] <= 0):
            if not self._ranks[number].started:
                host, way = settings.hostfile.hosts[number].ssh, f"{settings.python} --version"
                if host != LOCAL:
                    way = f"ssh {host} {'true' if codes[number] == SSH_FAILED else way}"
                return f"{self._ranks[number].name} did not start; see if `{way}` works"
        names = " and ".join(rank.name for rank in missing)
        return (
            f"{names}: not connected after {settings.start_limit:g} s; see that the machines reach "
            "each other's ips at these ports"
        )


def _say(line: str) -> None:
    if line:
        print(line, file=sys.stderr, flush=True)
