"""A process with everything imported, which forks a child for each job: a start in milliseconds."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


class Nursery:
    """The parent's end: one job at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._jobs, self._answers = self._process.stdin, self._process.stdout

    def run(
        self,
        argv: list[Any],
        said: Path,
        watched: Path,
        stop_at: int = 0,
        stop_in: int = 0,
        kill_after: float | None = None,
    ) -> int:
        """Run a `gateloop` command.

        Args:
            argv: Its arguments.
            said: The file that gets its output.
            watched: The directory where operations on files are counted.
            stop_at: The operation at which the process kills itself, counted from 1; 0: none.
            stop_in: The file of arrays that is half-written when it does, counted likewise.
            kill_after: Seconds after which it is killed.

        Returns:
            The exit code, negative for a signal.
        """
        job = {"argv": list(map(str, argv)), "said": str(said), "watched": str(watched)}
        job |= {"stop_at": stop_at, "stop_in": stop_in, "kill_after": kill_after}
        print(json.dumps(job), file=self._jobs, flush=True)
        return int(self._answers.readline())

    def close(self) -> None:
        self._jobs.close()
        self._answers.close()
        self._process.wait()


class Stops:
    """Counts of the operations on files below a directory; at one of them the process dies.

    Args:
        watched: The directory.
        stop_at: Number of the operation, from 1; 0: none.
        stop_in: Number of the array file of which half is written then.
    """

    def __init__(self, watched: str, stop_at: int, stop_in: int) -> None:
        self._watched, self._stop_at, self._stop_in = watched, stop_at, stop_in
        self.operations = self.writes = 0

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and self._is_below(arguments[0]):
            self.operations += 1
            if self.operations == self._stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def written(self, path: str) -> None:
        self.writes += self._is_below(path)
        if self.writes == self._stop_in:
            os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_below(self, path: object) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self._watched)


def child(job: dict[str, Any]) -> int:
    import mlx.core as mx

    from mlx_gateloop.cli import main
    from mlx_gateloop.train import loop

    output = os.open(job["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stops = Stops(job["watched"], job["stop_at"], job["stop_in"])
    write, save = mx.save_safetensors, loop.save_checkpoint

    def write_safetensors(path: str, *arguments: Any) -> None:
        write(path, *arguments)
        stops.written(path)

    def save_checkpoint(path: Path, model: Any, optimizer: Any, progress: Any, run: Any) -> None:
        save(path, model, optimizer, progress, run)
        print("saved", path, progress.step, file=sys.stderr, flush=True)

    mx.save_safetensors, loop.save_checkpoint = write_safetensors, save_checkpoint
    sys.addaudithook(stops.audit)
    code = main(job["argv"])
    print(stops.operations, stops.writes, file=sys.stderr, flush=True)
    return code


def serve() -> None:
    import mlx_gateloop.convert.__main__

    import mlx_gateloop.experiments.run  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(job)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(ended(pid, job["kill_after"]), flush=True)


def ended(pid: int, kill_after: float | None) -> int:
    """Wait for a child, or kill it if it takes too long; returns its exit code."""
    deadline = time.monotonic() + (1e9 if kill_after is None else kill_after)
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


if __name__ == "__main__":
    serve()
