"""A process with everything imported, which forks children: a start in milliseconds."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from math import inf


class Nursery:
    """The test's end of such a process, whose script runs `serve`."""

    def __init__(self, script):
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **job):
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate()


def serve(answer):
    """Answer each job, a line of JSON."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def fork(child):
    """Run a function in a process of its own, whose exit code it returns; returns the process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def ended(pids, kill_after=inf):
    """Wait for processes, or kill them after some seconds; returns codes, negative for a signal."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + kill_after
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return [codes[pid] for pid in pids]
