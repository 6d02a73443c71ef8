"""The `gateloop` command: its parser, and what its exit codes mean."""

import argparse
import os
import sys
import tempfile
from typing import NoReturn

from mlx_gateloop import __version__
from mlx_gateloop.commands import COMMANDS
from mlx_gateloop.errors import InputError


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 done, 2 the user's input was wrong (one line on stderr), 130 interrupted.
    """
    arguments = _parser().parse_args(argv)
    arguments.argv = sys.argv[1:] if argv is None else argv
    # transformers would tell every user that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        arguments.run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has gone: `gateloop generate ... | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "Failed to compile function" not in str(error):
            raise
        # MLX compiles into a folder of the temporary directory that all users share.
        advice = "if its folder mlx belongs to another user, set TMPDIR to a directory of yours"
        print(f"error: MLX cannot compile in {tempfile.gettempdir()}; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"\n{interrupt or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gateloop",
        description="GateLoop language models on MLX: train, evaluate, generate.",
        epilog="example: gateloop train --data my.txt --out models/mine",
    )
    parser.add_argument("--version", action="version", version=f"gateloop {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (add, summary, example) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        add(command)
    return parser
