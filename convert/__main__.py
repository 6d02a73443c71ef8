"""`gateloop convert` and `python -m convert`: the flags."""

import argparse
import math
import signal
import sys
from pathlib import Path

from mlx_gateloop import cli
from mlx_gateloop.commands.parser import add_settings
from mlx_gateloop.errors import InputError

from .conversion import FLOATS
from .from_source import convert, to_pytorch
from .options import Options
from .output import BITS, GROUP_SIZES
from .sources import SOURCES
from .verify import TOLERANCE

EXAMPLES = """
  gateloop convert weights.pt models/mine --tokenizer bytes --verify
  gateloop convert somebody/gateloop models/mine -q --q-bits 4
  gateloop convert models/mine weights.pt --to lucidrains
"""


def main(argv: list[str] | None = None) -> int:
    """Run `gateloop convert`; see `cli.main`."""
    return cli.main(["convert", *(sys.argv[1:] if argv is None else argv)])


def run(arguments: argparse.Namespace) -> int:
    """Convert.

    Returns:
        The exit code: 0 done, 1 the logits differ by more than the tolerance. Unless it is 0, the
        output is as it was before.

    Raises:
        InputError: The user's input was wrong.
    """
    options = Options(**vars(arguments))
    if not options.quantize and (options.q_bits or options.q_group_size):
        raise InputError("--q-bits and --q-group-size need -q")
    if not 0 <= options.tolerance < math.inf:
        raise InputError(f"--tolerance: expected a number from 0, got {options.tolerance}")
    options.q_bits, options.q_group_size = options.q_bits or 4, options.q_group_size or 64
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as little as Ctrl-C
    try:
        return 0 if (to_pytorch if options.to else convert)(options) else 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written") from None


def _settings() -> str:
    lines = [
        "\nsettings (--set KEY=VALUE, or lines `KEY: VALUE` of the YAML):",
        "  tokenizer: NAME",
    ]
    for kind, source in SOURCES.items():
        lines += [f"  {kind}", *(f"    {key}: {text}" for key, text in source.SETTINGS.items())]
    return "\n".join(lines)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = f"{command.epilog}{EXAMPLES}{_settings()}"
    add = command.add_argument
    add("source", metavar="SOURCE", help="a file of weights, a directory, or a hub id")
    add("out", metavar="OUT", type=Path, help="the model directory to make (--to: a file)")
    add("--force", action="store_true", help="replace a model that OUT holds")
    add("--dry-run", action="store_true", help="say what would be done; write and push nothing")

    group = command.add_argument_group("the source")
    add = group.add_argument
    add("--from", dest="kind", choices=SOURCES, help="what it is; default: detected by its keys")
    add(
        "--to",
        choices=("lucidrains",),
        help="the way back: SOURCE is a model directory, OUT a "
        "PyTorch state dict (.pt, .pth, .bin or .safetensors)",
    )
    add("--ema", action="store_true", help="take the averaged copy of the weights")
    add(
        "--settings",
        type=Path,
        metavar="FILE",
        help="YAML with what the weights do not say; "
        "default: convert.yaml, or the weights' name with .yaml, beside them",
    )
    add_settings(group, "one setting, over the file's; may be repeated")
    add(
        "--tokenizer",
        metavar="NAME",
        help="a .model of sentencepiece, a tokenizer.json, a "
        "directory, `bytes`, or a hub id; default: the one beside the weights",
    )

    group = command.add_argument_group("the output")
    add = group.add_argument
    add(
        "--dtype",
        choices=FLOATS,
        help="cast weights to it; default: as they are. State transitions are float32 always",
    )
    add(
        "-q",
        "--quantize",
        action="store_true",
        help="quantize all but the state transitions, and layers whose width is not divisible",
    )
    add("--q-bits", type=int, choices=BITS, help="bits a weight (default: 4)")
    add(
        "--q-group-size",
        type=int,
        choices=GROUP_SIZES,
        help="weights that share a scale (default: 64)",
    )
    add("--push", metavar="USER/NAME", help="upload it to the Hugging Face hub")

    group = command.add_argument_group("the proof")
    add = group.add_argument
    add(
        "--verify",
        action="store_true",
        help="run the source's own model and ours on random "
        "tokens and compare; exit code 1 if they differ",
    )
    add(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help="largest difference that passes, relative to the largest logit (default: 2e-5)",
    )


if __name__ == "__main__":
    sys.exit(main())
