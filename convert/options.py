"""The options of the command."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.parser import add_settings

from .sources import SOURCES

FLOATS = ("float32", "float16", "bfloat16")
BITS = (2, 3, 4, 5, 6, 8)  # mx.quantize's
GROUP_SIZES = (32, 64, 128)
TOLERANCE = 2e-5  # of the largest logit, float32


class Options(argparse.Namespace):
    """The options of a conversion; see `add_options` and the command's --help."""

    source: str
    out: Path
    force: bool
    dry_run: bool
    kind: str | None
    to: str | None
    ema: bool
    settings: Path | None
    set: list[str]
    tokenizer: str | None
    dtype: str | None
    quantize: bool
    q_bits: int
    q_group_size: int
    push: str | None
    verify: bool
    tolerance: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a file of weights, a directory, or a hub id")
    add("out", metavar="OUT", type=Path, help="the model directory to write (--to: a file)")
    add("--force", action="store_true", help="replace a model at OUT")
    add("--dry-run", action="store_true", help="say what would be done; write and push nothing")
    _add_source(parser.add_argument_group("the source"))
    _add_output(parser.add_argument_group("the output"))
    _add_proof(parser.add_argument_group("the proof"))


def _add_source(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--from", dest="kind", choices=SOURCES, help="its format; default: detected by its keys")
    add(
        "--to",
        choices=("lucidrains",),
        help="convert the other way: SOURCE is a model directory, OUT a "
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
    add_settings(group, "a setting; overrides the file's; may be repeated")
    add(
        "--tokenizer",
        metavar="NAME",
        help="a sentencepiece .model, a tokenizer.json, a "
        "directory, `bytes`, or a hub id; default: the one beside the weights",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--dtype",
        choices=FLOATS,
        help="cast the weights; default: as stored. State transitions are always float32",
    )
    add(
        "-q",
        "--quantize",
        action="store_true",
        help="quantize all layers but the state transitions and those of indivisible width",
    )
    add("--q-bits", type=int, choices=BITS, help="bits a weight (4)")
    add("--q-group-size", type=int, choices=GROUP_SIZES, help="weights that share a scale (64)")
    add("--push", metavar="USER/NAME", help="upload the result to the Hugging Face hub")


def _add_proof(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--verify",
        action="store_true",
        help="run the source's own model and ours on random tokens and compare; exit code 1 if "
        "they differ",
    )
    add(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help="largest difference that passes, relative to the largest logit (2e-5)",
    )
