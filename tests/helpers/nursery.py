"""A process with everything imported, which forks children: a start in milliseconds."""

import json
import multiprocessing
import subprocess
import sys
import time

CHILDREN = {}


class Nursery:
    """The test's end of such a process, whose script runs `serve`."""

    def __init__(self, script):
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **job):
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate()


def serve(answer):
    """Answer each job, a line of JSON."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def fork(child):
    """Run a function in a process of its own, which exits with its result; returns its id."""
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(child()))
    process.start()
    CHILDREN[process.pid] = process
    return process.pid


def ended(pids, kill_after):
    """Wait for processes, or kill them after some seconds; returns codes, negative for a signal."""
    deadline = time.monotonic() + kill_after
    for pid in pids:
        CHILDREN[pid].join(max(0, deadline - time.monotonic()))
        CHILDREN[pid].kill()
        CHILDREN[pid].join()
    return [CHILDREN.pop(pid).exitcode for pid in pids]
