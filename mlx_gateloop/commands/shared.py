"""Arguments that several commands take."""

import argparse
from typing import Any

from mlx_gateloop.errors import InputError


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", required=True, metavar="DIR", help="a model directory or hub id"
    )


def add_settings(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def settings(arguments: list[str], example: str) -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, each read as YAML."""
    import yaml

    values = {}
    for setting in arguments:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: expected KEY=VALUE, such as {example}")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"--set {setting}: {value!r} is not a YAML value") from None
    return values
