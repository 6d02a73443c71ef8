"""The `gateloop` command, also of `python -m app` and `python -m convert`."""

import io
import os
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from mlx_gateloop.commands.parser import parse
from mlx_gateloop.errors import InputError, one_line, printable, shortened, shown
from mlx_gateloop.io import extras
from mlx_gateloop.io.interrupt import NOT_COMPILED

if TYPE_CHECKING:  # it imports MLX
    from mlx_gateloop.distributed.world import World


def main(argv: list[str] | None = None) -> int:
    """Run a command; return its code: 0 done, 2 wrong input (one line on stderr), 130 Ctrl-C."""
    code, line = run(sys.argv[1:] if argv is None else argv)
    try:
        print(end="", flush=True)
    except OSError:  # Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if line:
        start = "\n" if code == 130 and sys.stderr.isatty() else ""  # a terminal shows ^C there
        with suppress(OSError):  # its reader may have ended: 2>&1 | head
            print(f"{start}{line}", file=sys.stderr, flush=True)
    return code


def run(argv: list[str], world: "World | None" = None) -> tuple[int, str]:
    """Run a command on the ranks of `world`; return its exit code and its last line for stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    code = 0
    try:
        arguments = parse(argv)
        arguments.world = world
        extras.check(arguments.extra)
        code = arguments.run(arguments) or 0
        print(end="", flush=True)
        return code, ""
    except BrokenPipeError:  # the reader of our output closed it: `gateloop generate ... | head`
        return code, ""
    except KeyboardInterrupt as interrupt:
        return 130, printable(str(interrupt) or "interrupted")
    except Exception as error:
        if (message := _users_error(error)) is None:
            raise
        return 2, printable(f"error: {'; '.join(message.splitlines())}")


def _users_error(error: Exception) -> str | None:
    """The message for an error that the user can correct; None for a defect of ours."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        name = str(error.filename or "")
        if len(name) > 1000:  # one from a settings file
            name = shortened(name)
        return f"{name}: {error.strerror}" if name else f"{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "this machine's memory is not enough; choose something smaller"
    if isinstance(error, ModuleNotFoundError):
        return extras.advice(error.name or "")
    text = str(error)
    if isinstance(error, UnicodeEncodeError):  # of a file's name
        return f"{shown(error.object)}: not UTF-8 text; give another name"
    if isinstance(error, RuntimeError) and any(failure in text for failure in NOT_COMPILED):
        # MLX compiles into a folder of the temporary directory that all users share.
        advice = "set TMPDIR to a directory of yours from which programs may run"
        return f"MLX cannot compile in {tempfile.gettempdir()}; {advice}"
    if isinstance(error, ValueError) and "raise maximum limit" in text:  # by mlx-lm's import
        return "open files: mlx-lm needs 4096; run: ulimit -n 4096, or ask who set the limit"
    if isinstance(error, RuntimeError) and "home directory" in text:
        return "no home directory: set HOME"
    if isinstance(error, ImportError | ValueError) and " proxy" in text:  # httpx's
        advice = 'correct or unset ALL_PROXY, HTTP_PROXY and HTTPS_PROXY, or pip install "socksio"'
        return f"{one_line(error)}; {advice}"
    return None
