"""One rank of `gateloop launch`, as mlx.launch starts it.

    python -m mlx_gateloop.distributed.rank JSON COMMAND

It reads the variables by which mlx.launch tells a process its place.
"""

import io
import json
import os
import select
import signal
import sys
import threading
import traceback
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import mlx_gateloop.no_torch  # noqa: F401  # for its effect
from mlx_gateloop import __version__
from mlx_gateloop.cli import run
from mlx_gateloop.distributed import events
from mlx_gateloop.distributed.hosts import require_free
from mlx_gateloop.distributed.processors import pin_cpus
from mlx_gateloop.errors import InputError, one_line


def main(settings: dict[str, Any], argv: list[str]) -> NoReturn:
    """Run a command as one of several ranks, report its end to the launcher, and exit.

    Args:
        settings: `key` of the launch, `hosts` by rank, `limit` in seconds, `terminal` if the first
            rank's progress is seen, and `restarted` after a failure.
        argv: The command line of `gateloop`.
    """
    rank = int(os.environ["MLX_RANK"])
    send = partial(events.send, settings["key"], rank=rank)

    ending = threading.Lock()

    def end(code: int, line: str) -> NoReturn:
        ending.acquire()  # for good: one thread ends the process
        send(code=code, line=line)
        os._exit(code)  # nothing waits for MLX's threads, which may hang

    def expired(exchange: str) -> NoReturn:
        end(1, f"no answer of the other ranks in the {exchange} for {settings['limit']:g} s")

    threading.Thread(target=_obey, args=[settings["limit"]], daemon=True).start()
    send(started=True)
    _take_cores(settings["hosts"], rank)
    code, line = 1, ""
    try:
        _check_address(rank)
        world = _join(settings, expired)
        send(joined=True)
        world.assert_equal({"mlx-gateloop": __version__, "MLX": version("mlx")})
        _set_streams(world.is_first, settings["terminal"])
        if settings["restarted"]:
            argv = world.broadcast(partial(_resumed, argv), "command")
        code, line = run(argv, world)
    except InputError as error:
        code, line = 2, f"error: {error}"
    except BaseException as error:
        line = one_line(error)
        if type(error).__name__ != "PeerLost":
            traceback.print_exc(file=sys.__stderr__)
    sys.stdout.flush()
    sys.stderr.flush()
    end(code, line)


def _join(settings: dict[str, Any], expired: Any) -> Any:
    """Connect to the other ranks; MLX may wait for ever here, and the launcher ends that."""
    import mlx.core as mx

    from mlx_gateloop.distributed.limit import TimeLimit
    from mlx_gateloop.distributed.world import World

    if len(settings["hosts"]) == 1:
        return World()
    try:
        group = mx.distributed.init(strict=True, backend=settings["backend"])
    except RuntimeError as error:
        raise InputError(f"cannot connect to the next rank ({one_line(error)})") from None
    overlaps = mx.default_device() != mx.Device(mx.cpu)
    limit = TimeLimit(settings["limit"], expired)
    return World(group, settings["hosts"], limit, overlaps=overlaps)


def _check_address(rank: int) -> None:
    """Require that this rank can listen where MLX's ring will."""
    file = os.environ.get("MLX_HOSTFILE")
    for address in json.loads(Path(file).read_text().strip() or "[]")[rank:][:1] if file else []:
        for place in address:
            host, _, port = place.rpartition(":")
            require_free(host, int(port))


def _take_cores(hosts: list[str], rank: int) -> None:
    """Divide a machine's processors among its ranks."""
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    if len(here) > 1:
        pin_cpus(here.index(rank), len(here))


def _obey(limit: float) -> None:
    """Take the launcher's word to stop, its end, or its silence, as Ctrl-C."""
    word = b"go on"
    while word and b"stop" not in word:
        word = os.read(0, 4096) if select.select([0], [], [], limit)[0] else b""
    os.kill(os.getpid(), signal.SIGINT)


def _set_streams(is_first: bool, terminal: bool) -> None:
    """Show the first rank alone, with its progress bar if the launcher has a terminal."""
    if not is_first:
        sys.stdout = sys.stderr = io.StringIO()
    elif terminal:
        sys.stderr.isatty = lambda: True  # type: ignore[method-assign]


def _resumed(argv: list[str]) -> list[str]:
    """The command line that continues what a failed attempt had saved."""
    from mlx_gateloop.cli import parse

    arguments = parse(argv)
    if not hasattr(arguments, "resume") or arguments.resume or not arguments.out:
        return argv
    has_checkpoint = any((arguments.out / "checkpoints").glob("[!.]*"))
    return [*argv, "--resume"] if has_checkpoint else argv


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
