"""`gateloop convert`, also `python -m convert`."""

import argparse
import math
import signal
import sys

from mlx_gateloop.__main__ import main as gateloop
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.interrupt import handling

SETTINGS = """settings (--set KEY=VALUE, or lines `KEY: VALUE` of the YAML):
  tokenizer: NAME
"""
EXAMPLES = """
  gateloop convert somebody/gateloop models/mine -q --q-bits 4
  gateloop convert meshgpt.pt models/mesh-layers --layers"""


def main(argv: list[str] | None = None) -> int:
    """Run `gateloop convert`; see `cli.main`."""
    return gateloop(["convert", *(sys.argv[1:] if argv is None else argv)])


def add_arguments(command: argparse.ArgumentParser) -> None:
    from .options import add_options
    from .sources import SOURCES

    command.set_defaults(run=run)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    lines = []
    for kind, source in SOURCES.items():
        settings = [f"    {key}: {text}" for key, text in source.settings.items()]
        lines += [f"  {kind}", *settings] if settings else []
    command.epilog = SETTINGS + "\n".join(lines) + f"\n\n{command.epilog}{EXAMPLES}"
    add_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Convert; return 0, or 1 if the proof failed. Unless it is 0, the output is as it was."""
    from .from_source import convert
    from .layers import convert_layers

    if not arguments.quantize and (arguments.q_bits or arguments.q_group_size):
        raise InputError("--q-bits and --q-group-size need -q")
    if not 0 <= arguments.tolerance < math.inf:
        raise InputError(f"--tolerance: expected a number from 0, got {arguments.tolerance}")
    with handling(signal.default_int_handler):
        if arguments.layers:
            convert_layers(arguments)
        elif not convert(arguments):
            print("error: the logits differ; nothing was written", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
