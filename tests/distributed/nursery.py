"""A process with everything imported, which forks ranks that listen on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from mlx_gateloop.distributed.events import received
from mlx_gateloop.distributed.hosts import Hostfile, free_ports, local_hosts

PATIENCE = 120  # seconds; longer than any test takes on a busy machine


class Nursery:
    """The test's end of it.

    Args:
        folder: A directory for what the ranks print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self, size: int, *words: Any, limit: float = PATIENCE, sequence: int = 1
    ) -> list[int]:
        """Start ranks; returns their process ids.

        Args:
            size: Their number.
            words: A `gateloop` command, or the name of a function of `distributed.jobs`.
            limit: Seconds that they wait for each other.
            sequence: Ranks that share a sequence in a function.
        """
        words = tuple(map(str, words))
        folder = str(self._folder)
        return self._ask(size=size, words=words, limit=limit, sequence=sequence, folder=folder)

    def wait(self) -> list[int]:
        """Wait until all ranks have ended; returns their exit codes, negative for a signal."""
        return self._ask()

    def run(self, size: int, *words: Any, **options: Any) -> list[int]:
        self.start(size, *words, **options)
        return self.wait()

    def said(self, rank: int) -> str:
        """The last line of a rank, as it tells the launcher."""
        lines = (self._folder / f"{rank}.out").read_bytes().split(b"\n")
        return next((event["line"] for event in map(received, lines) if "code" in event), "")

    def answers(self, size: int, job: str, *words: Any, **options: Any) -> list[Any]:
        """The results of a function of `distributed.jobs`, of each rank."""
        codes = self.run(size, job, *words, **options)
        assert codes == [0] * size, [self.said(rank) for rank in range(size)]
        return [json.loads(self.said(rank)) for rank in range(size)]

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **job: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def child(job: dict[str, Any], rank: int, hostfile: Hostfile, port: int) -> None:
    from distributed import jobs

    import mlx_gateloop.distributed.rank as entry

    for descriptor, suffix in ((1, "out"), (2, "err")):
        file = os.open(f"{job['folder']}/{rank}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    reader, _ = os.pipe()  # the launcher's end stays open and says nothing
    os.dup2(reader, 0)
    variables, files = hostfile.variables(rank, port)
    settings = {"rank": rank, "backend": "ring", "variables": variables, "files": files}
    settings |= {"hosts": [f"desk{other}" for other in range(job["size"])], "restarted": False}
    settings |= {"listens_at": hostfile.addresses(port)[rank], "limit": job["limit"]}
    settings |= {"terminal": False}
    if hasattr(jobs, job["words"][0]):
        run = getattr(jobs, job["words"][0])
        split = job["sequence"]
        entry.run = lambda words, world: (
            0,
            json.dumps(run(world.with_sequences_over(split), *words[1:])),
        )
    entry.main(settings, job["words"])


def serve() -> None:
    import matplotlib.pyplot  # noqa: F401

    from mlx_gateloop.train import train  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        if job:
            hostfile, port = local_hosts(job["size"]), free_ports(job["size"])
            pids = []
            for rank in range(job["size"]):
                pids.append(os.fork())
                if pids[-1] == 0:
                    try:
                        child(job, rank, hostfile, port)
                    finally:
                        os._exit(99)
            print(json.dumps(pids), flush=True)
        else:
            print(json.dumps(ended(pids)), flush=True)


def ended(pids: list[int]) -> list[int]:
    """Wait for processes; those that are still there after `PATIENCE` are killed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    serve()
