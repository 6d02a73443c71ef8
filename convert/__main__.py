"""The command `python -m convert SOURCE OUT`: it reads the flags and says what went wrong."""

import argparse
import io
import math
import os
import signal
import sys
from pathlib import Path

from mlx_gateloop.cli import Parser
from mlx_gateloop.errors import InputError

from .conversion import FLOATS
from .from_source import convert, to_pytorch
from .options import Options
from .output import BITS, GROUP_SIZES
from .sources import SOURCES
from .verify import TOLERANCE

EXAMPLES = """examples:
  python -m convert weights.pt models/mine --tokenizer bytes --verify
  python -m convert somebody/gateloop models/mine -q --q-bits 4
  python -m convert models/mine weights.pt --to lucidrains
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 done, 1 the logits differ by more than the tolerance, 2 the user's input was wrong (one
        line on stderr), 130 interrupted. Unless it is 0, the output is as it was before.
    """
    for stream in (sys.stdout, sys.stderr):  # a path may hold what the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    options = parser.parse_args(argv, namespace=Options())
    if not options.quantize and (options.q_bits or options.q_group_size):
        parser.error("--q-bits and --q-group-size need -q")
    if not 0 <= options.tolerance < math.inf:
        parser.error(f"--tolerance: expected a number from 0, got {options.tolerance}")
    options.q_bits, options.q_group_size = options.q_bits or 4, options.q_group_size or 64
    # transformers would tell every user that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        return 0 if (to_pytorch if options.to else convert)(options) else 1
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
    except MemoryError:
        print(f"error: {options.source}: larger than this machine's memory", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    return 2


def _settings() -> str:
    lines = [
        "\nsettings (--set KEY=VALUE, or lines `KEY: VALUE` of the YAML):",
        "  tokenizer: NAME",
    ]
    for kind, source in SOURCES.items():
        lines += [f"  {kind}", *(f"    {key}: {text}" for key, text in source.SETTINGS.items())]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m convert",
        description="Brings GateLoop weights trained elsewhere to a model directory, and back.",
        epilog=EXAMPLES + _settings(),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a file of weights, a directory, or a hub id")
    add("out", metavar="OUT", type=Path, help="the model directory to make (--to: a file)")
    add("--force", action="store_true", help="replace a model that OUT holds")
    add("--dry-run", action="store_true", help="say what would be done; write and push nothing")

    group = parser.add_argument_group("the source")
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
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, over the file's; may be repeated",
    )
    add(
        "--tokenizer",
        metavar="NAME",
        help="a .model of sentencepiece, a tokenizer.json, a "
        "directory, `bytes`, or a hub id; default: the one beside the weights",
    )

    group = parser.add_argument_group("the output")
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

    group = parser.add_argument_group("the proof")
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
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as little behind as Ctrl-C
    sys.exit(main())
