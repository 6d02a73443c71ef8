"""The parser of the command line, and the arguments that several commands take."""

import argparse
import re
from importlib import import_module
from typing import NoReturn

from mlx_gateloop import __version__
from mlx_gateloop.commands import COMMANDS
from mlx_gateloop.errors import InputError, printable

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows each default, unless it is empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, printable(f"error: {message}; see {self.prog} --help") + "\n")


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command line; a wrong one ends the process with a line on stderr."""
    arguments = make_parser(argv).parse_args(argv)
    arguments.argv = argv
    return arguments


def make_parser(argv: list[str]) -> Parser:
    """The parser of all commands; only the command that `argv` names gets its arguments."""
    parser = Parser(
        prog="gateloop",
        description="GateLoop language models on MLX: train, evaluate, generate, chat, convert.",
        epilog="example: gateloop train --data my.txt --minutes 5 --out models/mine",
    )
    parser.add_argument("--version", action="version", version=f"gateloop {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    called = next((word for word in argv if not word.startswith("-")), None)
    for name, entry in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=entry.summary,
            description=f"{entry.summary[0].upper()}{entry.summary[1:]}.",
            epilog=f"example: {entry.example}",
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        if name == called:
            parser.prog = command.prog  # in the error of an unknown option
            command.set_defaults(extra=entry.extra)
            module = entry.module or f"commands.{name}"
            import_module(f"mlx_gateloop.{module}").add_arguments(command)
    return parser


def add_model(command: argparse.ArgumentParser) -> None:
    text = "a model directory, an embedded model such as demo, or a hub id"
    command.add_argument("--model", required=True, metavar="DIR", help=text)


def positive(text: str) -> int:
    """Parse an argument that is a whole number of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return number


def add_settings(command: argparse._ActionsContainer, text: str) -> None:
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def settings(arguments: list[str], example: str) -> dict[str, object]:
    """Parse `--set KEY=VALUE` arguments; each value is YAML."""
    from mlx_gateloop.configuration import parse_yaml

    values = {}
    for setting in arguments:
        key, equals, value = setting.partition("=")
        if not equals or not value:  # the word null is YAML's for none
            raise InputError(f"--set {setting}: expected KEY=VALUE, such as {example}")
        try:
            values[key] = as_number(parse_yaml(value))
        except ValueError:
            raise InputError(f"--set {setting}: {value!r} is not a YAML value") from None
    return values


def as_number(value: object) -> object:
    """Turn 1e-6 and 2.5e3 into floats: YAML reads them as strings."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
