"""Commands that are killed at an operation on files, forked from one process that imports all."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from helpers import nursery

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


class Stops:
    """Counts of the operations on files below a directory; the process dies at one of them.

    That is operation `stop_at`, from 1, or the middle of a file of arrays, `stop_in` from 1.
    """

    def __init__(self, watched, stop_at=0, stop_in=0):
        self._watched, self._stop_at, self._stop_in = watched, stop_at, stop_in
        self.operations = self.writes = 0

    def audit(self, event, arguments):
        if event in EVENTS and self._is_below(arguments[0]):
            self.operations += 1
            if self.operations == self._stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def written(self, path):
        self.writes += self._is_below(path)
        if self.writes == self._stop_in:
            os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_below(self, path):
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self._watched)


def child(argv, said, stops):
    import mlx.core as mx

    from mlx_gateloop.cli import main
    from mlx_gateloop.train import loop

    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    write, save = mx.save_safetensors, loop.save_checkpoint

    def write_safetensors(path, *arguments):
        write(path, *arguments)
        stops.written(path)

    def save_checkpoint(path, model, optimizer, progress, run):
        save(path, model, optimizer, progress, run)
        print("saved", path, progress.step, file=sys.stderr, flush=True)

    mx.save_safetensors, loop.save_checkpoint = write_safetensors, save_checkpoint
    sys.addaudithook(stops.audit)
    code = main(argv)
    print(stops.operations, stops.writes, file=sys.stderr, flush=True)
    return code


def answer(job):
    """Run a `gateloop` command `argv`, whose output goes to the file `said`; return its exit code.

    Operations on files are counted below `watched`; it is killed there, or after some seconds.
    """
    argv, said, watched = (job.pop(name) for name in ("argv", "said", "watched"))
    kill_after = job.pop("kill_after", 1e6)
    pid = nursery.fork(partial(child, argv, said, Stops(watched, **job)))
    return nursery.ended([pid], kill_after)[0]


if __name__ == "__main__":
    import matplotlib.figure  # noqa: F401
    import mlx_gateloop.convert.__main__
    from transformers import AutoTokenizer  # noqa: F401

    import mlx_gateloop.experiments.run  # noqa: F401

    nursery.serve(answer)
