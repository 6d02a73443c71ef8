"""Ranks that listen on loopback, forked from a process with everything imported."""

import json
import os
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from helpers import nursery

from mlx_gateloop.distributed.hosts import LOCAL, Host, Hostfile, free_ports
from mlx_gateloop.distributed.launch import Attempt, Settings, received

PATIENCE = 120  # seconds; longer than any test takes on a busy machine


class Ranks(nursery.Nursery):
    """The test's end of it; the ranks print into files of a folder."""

    def __init__(self, folder):
        super().__init__(__file__)
        self._folder = folder

    def start(self, size, *words, limit=PATIENCE, sequence=1):
        """Start ranks of a command or a function of `distributed.jobs`; returns their pids."""
        job = {"words": [*map(str, words)], "folder": str(self._folder)}
        self._pids: list[int] = self.ask(size=size, limit=limit, sequence=sequence, **job)
        return self._pids

    def wait(self):
        return self.ask(wait_for=self._pids)

    def run(self, size, *words, **options):
        self.start(size, *words, **options)
        return self.wait()

    def said(self, rank):
        """The last line of a rank, as it tells the launcher."""
        lines = (self._folder / f"{rank}.out").read_bytes().split(b"\n")
        return next((event["line"] for event in map(received, lines) if "code" in event), "")

    def answers(self, size, job, *words, **options):
        codes = self.run(size, job, *words, **options)
        assert codes == [0] * size, [self.said(rank) for rank in range(size)]
        return [json.loads(self.said(rank)) for rank in range(size)]


def child(job, rank, settings):
    from distributed import jobs

    import mlx_gateloop.distributed.rank as entry

    for descriptor, suffix in ((1, "out"), (2, "err")):
        file = os.open(f"{job['folder']}/{rank}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    reader, _ = os.pipe()  # the launcher's end stays open and says nothing
    os.dup2(reader, 0)
    if run := getattr(jobs, job["words"][0], None):

        def call(words, world):
            return 0, json.dumps(run(world.with_sequences_over(job["sequence"]), *words[1:]))

        entry.run = call
    entry.main(settings, job["words"])


def answer(job):
    if "wait_for" in job:
        return nursery.ended(job["wait_for"], PATIENCE)
    hostfile = Hostfile([Host(f"desk{rank}", (LOCAL,)) for rank in range(job["size"])])
    settings = Settings(hostfile, free_ports(job["size"]), sys.executable, job["limit"], PATIENCE)
    commands = Attempt(settings, [], restarted=False).commands()
    return [nursery.fork(partial(child, job, n, json.loads(c[-1]))) for n, c in enumerate(commands)]


if __name__ == "__main__":
    import matplotlib.pyplot  # noqa: F401
    from transformers import AutoTokenizer  # noqa: F401

    import mlx_gateloop.train  # noqa: F401

    nursery.serve(answer)
