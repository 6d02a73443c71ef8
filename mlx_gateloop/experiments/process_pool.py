"""Calls side by side, each in a process of its own with its share of the processors."""

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from threading import Thread

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.interrupt import Interrupted, interrupt_flag
from mlx_gateloop.io.machine import pin_cpus

POLL = 0.2  # seconds between looks at the processes and at Ctrl-C


def run_processes(calls: Mapping[str, Callable[[], object]], jobs: int, logs: Path) -> None:
    """Make all calls, at most `jobs` at a time; one that fails leaves the others alone.

    Each has one BLAS thread and, on Linux, its share of the processors. Ctrl-C, SIGTERM and the end
    of this process reach the others as one SIGTERM. NAME.log in `logs` has what they print.
    """
    waiting, failed = list(calls), []
    running: dict[int, tuple[str, Popen[bytes]]] = {}  # by share
    logs.mkdir(parents=True, exist_ok=True)
    with interrupt_flag() as stop:
        while (running or waiting) and not stop.is_set():
            while waiting and (free := {*range(jobs)} - running.keys()):
                name, share = waiting.pop(0), min(free)
                print(f"{logs.name}/{name} begins, {len(waiting)} after it", file=sys.stderr)
                call = (calls[name], share, min(jobs, len(calls)))
                running[share] = name, _start(call, logs / f"{name}.log")
            time.sleep(POLL)
            for share, (name, process) in list(running.items()):
                if process.poll() is not None:
                    _close(process)
                    del running[share]
                if code := process.returncode:
                    failed.append(f"{name} ({_reason(code, logs / f'{name}.log')})")
                    print(f"{logs.name}/{name} failed", file=sys.stderr)
        for _, process in running.values():
            _close(process)  # which asks it to stop
        for _, process in running.values():
            process.wait()
        if stop.is_set():
            raise Interrupted
    if failed:
        advice = "the same command with --resume tries them again"
        raise InputError(f"{len(failed)} of {len(calls)} failed: {'; '.join(failed)}; {advice}")


def _start(call: tuple[Callable[[], object], int, int], log: Path) -> Popen[bytes]:
    command = [sys.executable, "-m", __name__]
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # more would wait for each other
    with log.open("ab") as file:  # a terminal's Ctrl-C spares a session of its own
        process = Popen(
            command, stdin=PIPE, stdout=file, stderr=STDOUT, env=variables, start_new_session=True
        )
    assert process.stdin
    pickle.dump(call, process.stdin)
    process.stdin.flush()
    return process


def _close(process: Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.close()


def _reason(code: int, log: Path) -> str:
    """The last line that a process printed, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").split("\n")
    return next(filter(str.strip, reversed(lines)), f"exit code {code}")


def _stop_with_parent() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # make the call of the standard input, whose end is the parent's
    call, share, jobs = pickle.load(sys.stdin.buffer)
    Thread(target=_stop_with_parent, daemon=True).start()
    pin_cpus(share, jobs)  # before MLX has threads, which inherit it
    call()
