"""Calls side by side, each in a process of its own with its share of the processors."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread

from mlx_gateloop.distributed.hosts import LOCAL, SSH_FAILED
from mlx_gateloop.distributed.processors import pin_cpus
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.over_hosts import OnHost, make
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag

POLL = 0.5  # seconds between looks at Ctrl-C
TAIL = 4096  # bytes of a log that are searched for its last line


@dataclass(frozen=True)
class OnShare:
    """A call on a share of the machine's processors, see `pin_cpus`."""

    call: Callable[[], object]
    place: int
    places: int

    def __call__(self) -> None:
        pin_cpus(self.place, self.places)  # before MLX has threads, which inherit it
        self.call()


def side_by_side(
    calls: Mapping[str, Callable[[], object]],
    jobs: int,
    logs: Path,
    hosts: Sequence[str] = (LOCAL,),
) -> None:
    """Make all calls, at most `jobs` at a time; one that fails leaves the others alone.

    Each has one thread of the BLAS, and on Linux its share of the processors, which it keeps when
    others are done.

    Ctrl-C and SIGTERM are handed to the processes as SIGTERM, once, and all are waited for.

    Args:
        calls: By name; they can be pickled.
        jobs: Number of processes on each machine.
        logs: The folder for NAME.log, what a process prints.
        hosts: The machines, see `over_hosts`. One that ssh cannot reach gets no more calls, and
            others make its own.

    Raises:
        InputError: Some failed; the message has each one's last line.
        Interrupted: Ctrl-C or SIGTERM.
    """
    kind, waiting, failed = logs.name, list(calls), []
    jobs = min(jobs, -(-len(calls) // len(hosts)))
    running: dict[str, tuple[SpawnProcess, tuple[str, int]]] = {}
    free = [(host, share) for share in range(jobs) for host in hosts]
    logs.mkdir(parents=True, exist_ok=True)
    with interrupt_flag() as stop, _one_thread():
        while running or (waiting and free and not stop.is_set()):
            while waiting and free and not stop.is_set():
                name, place = waiting.pop(0), free.pop(0)
                host, share = place
                print(f"{kind}/{name} begins{_at(host)}, {len(waiting)} after it", file=sys.stderr)
                call = OnShare(calls[name], share, jobs)
                there = call if host == LOCAL else OnHost(host, call)
                running[name] = _start(there, logs / f"{name}.log"), place
            connection.wait([process.sentinel for process, _ in running.values()], POLL)
            if stop.is_set():
                for process, _ in running.values():
                    process.terminate()
                break
            for name in [name for name, (process, _) in running.items() if not process.is_alive()]:
                process, place = running.pop(name)
                host, _ = place
                if process.exitcode == SSH_FAILED and host != LOCAL:
                    print(
                        f"{kind}/{name}: ssh has lost {host}, which gets no more", file=sys.stderr
                    )
                    free = [other for other in free if other[0] != host]
                    waiting.append(name)
                    continue
                free.append(place)
                if code := process.exitcode:
                    failed.append(f"{name} ({_last_line(logs / f'{name}.log', code)})")
                    print(f"{kind}/{name} failed{_at(host)}", file=sys.stderr)
        for process, _ in running.values():
            process.join()
        if stop.is_set():
            raise Interrupted
    failed += [f"{name} (no machine is left)" for name in waiting]
    if failed:
        advice = "the same command with --resume tries them again"
        raise InputError(f"{len(failed)} of {len(calls)} failed: {'; '.join(failed)}; {advice}")


def _at(host: str) -> str:
    return "" if host == LOCAL else f" on {host}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let new processes have one thread of OpenBLAS: more would wait for each other."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _start(call: Callable[[], object], log: Path) -> SpawnProcess:
    process = get_context("spawn").Process(target=_call, args=(call, log), daemon=True)
    resource_tracker.ensure_running()  # it lifts the block when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the process keeps
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _call(call: Callable[[], object], log: Path) -> None:
    """Make a call in a new process, apart from the terminal's Ctrl-C."""
    os.setpgrp()
    Thread(target=_end_with_parent, daemon=True).start()
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
        make(call)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _last_line(log: Path, code: int) -> str:
    """The last line that a process printed, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = log.read_bytes()[-TAIL:].decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
