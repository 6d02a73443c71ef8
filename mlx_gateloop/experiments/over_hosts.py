"""A call on another machine by ssh, in the same folders: its end and Ctrl-C are those of the call.

The call goes there as a pickle by the standard input, which stays open; a machine that reads its
end, because ssh or this process has gone, saves and stops.
"""

import os
import pickle
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from subprocess import PIPE, Popen
from threading import Thread

from mlx_gateloop.errors import InputError
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
SERVE = "from mlx_gateloop.experiments.over_hosts import serve; serve()"


@dataclass(frozen=True)
class OnHost:
    """A call on a machine.

    Args:
        host: The machine's name for ssh.
        call: What it calls; it can be pickled.
    """

    host: str
    call: Callable[[], object]

    def __call__(self) -> None:
        """Make the call; the process exits with its code unless that is 0."""
        command = shlex.join(["env", "OPENBLAS_NUM_THREADS=1", sys.executable, "-c", SERVE])
        with interrupt_flag() as stop, Popen([*SSH, "--", self.host, command], stdin=PIPE) as there:
            assert there.stdin
            with suppress(OSError):
                there.stdin.write(pickle.dumps(self.call))
                there.stdin.flush()
            while there.poll() is None and not stop.wait(0.2):
                pass
            with suppress(OSError):
                there.stdin.close()
        if there.returncode:
            raise SystemExit(there.returncode)


def serve() -> None:
    """Make the call that comes by the standard input."""
    call = pickle.load(sys.stdin.buffer)
    Thread(target=_end_with_input, daemon=True).start()
    make(call)


def make(call: Callable[[], object]) -> None:
    """Make a call as the only work of a process: errors are a line and an exit code."""
    try:
        call()
    except (InputError, Interrupted) as error:
        print(error, file=sys.stderr)
        raise SystemExit(130 if isinstance(error, Interrupted) else 2) from None


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
