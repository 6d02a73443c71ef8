"""A pool of calls, each in a process of its own with its share of the processors."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread

from mlx_gateloop.distributed.processors import pin_cpus
from mlx_gateloop.errors import InputError
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag

POLL = 0.5  # seconds between looks at Ctrl-C
TAIL = 4096  # bytes of a log that are searched for its last line


def run_processes(calls: Mapping[str, Callable[[], object]], jobs: int, logs: Path) -> None:
    """Make all calls, at most `jobs` at a time; one that fails leaves the others alone.

    Each has one BLAS thread and, on Linux, its share of the processors. Ctrl-C and SIGTERM reach
    the processes as one SIGTERM; all are waited for. What a process prints is in NAME.log of
    `logs`.
    """
    waiting, failed = list(calls), []
    running: dict[str, tuple[SpawnProcess, int]] = {}
    jobs = min(jobs, len(calls))
    free = list(range(jobs))
    logs.mkdir(parents=True, exist_ok=True)
    with interrupt_flag() as stop, _one_thread():
        while (running or waiting) and not stop.is_set():
            while waiting and free and not stop.is_set():
                name, share = waiting.pop(0), free.pop(0)
                print(f"{logs.name}/{name} begins, {len(waiting)} after it", file=sys.stderr)
                log = logs / f"{name}.log"
                running[name] = _start(calls[name], (share, jobs), log), share
            connection.wait([process.sentinel for process, _ in running.values()], POLL)
            for name in [name for name, (process, _) in running.items() if not process.is_alive()]:
                process, share = running.pop(name)
                free.append(share)
                if code := process.exitcode:
                    failed.append(f"{name} ({_last_line(logs / f'{name}.log', code)})")
                    print(f"{logs.name}/{name} failed", file=sys.stderr)
        if stop.is_set():
            for process, _ in running.values():
                process.terminate()
            for process, _ in running.values():
                process.join()
            raise Interrupted
    if failed:
        advice = "the same command with --resume tries them again"
        raise InputError(f"{len(failed)} of {len(calls)} failed: {'; '.join(failed)}; {advice}")


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


def _start(call: Callable[[], object], share: tuple[int, int], log: Path) -> SpawnProcess:
    process = get_context("spawn").Process(target=_call, args=(call, share, log), daemon=True)
    resource_tracker.ensure_running()  # it lifts the block when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the process keeps
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _call(call: Callable[[], object], share: tuple[int, int], log: Path) -> None:
    """Make a call in a new process without the terminal's Ctrl-C; errors are a line and a code."""
    os.setpgrp()
    Thread(target=_end_with_parent, daemon=True).start()
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
        pin_cpus(*share)  # before MLX has threads, which inherit it
        try:
            call()
        except (InputError, Interrupted) as error:
            print(error, file=sys.stderr)
            raise SystemExit(130 if isinstance(error, Interrupted) else 2) from None


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
