"""Options and settings of the command; settings hold what the weights do not show."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.parser import add_settings, as_number
from mlx_gateloop.commands.parser import settings as parse_settings
from mlx_gateloop.configuration import read_yaml

from .sources import SOURCES

FLOATS = ("float32", "float16", "bfloat16")
BITS = (2, 3, 4, 5, 6, 8)  # as in mx.quantize


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a file of weights, a directory, or a hub id")
    add("out", metavar="OUT", type=Path, help="the model directory to write")
    text = "write the GateLoop layers inside a checkpoint of any model, for gl.load_layers"
    add("--layers", action="store_true", help=text)
    add("--force", action="store_true", help="replace a model at OUT")
    add("--dry-run", action="store_true", help="print what would be done; write nothing")

    group = parser.add_argument_group("the source")
    add = group.add_argument
    add("--from", dest="kind", choices=SOURCES, help="its format; default: detected from its keys")
    add("--ema", action="store_true", help="take the averaged copy of the weights")
    text = "YAML with what the weights do not show; default: convert.yaml, or the weights' name "
    add("--settings", type=Path, metavar="FILE", help=text + "with .yaml, beside them")
    add_settings(group, "a setting, which overrides the file; may be repeated")
    text = "a sentencepiece .model, a tokenizer.json, a directory, `bytes`, or a hub id; "
    add("--tokenizer", metavar="NAME", help=text + "default: the one beside the weights")

    add = parser.add_argument_group("the output").add_argument
    text = "cast the weights; default: as stored. State transitions are always float32"
    add("--dtype", choices=FLOATS, help=text)
    text = "quantize all layers but the state transitions and those of an indivisible width"
    add("-q", "--quantize", action="store_true", help=text)
    add("--q-bits", type=int, choices=BITS, help="bits per weight (4)")
    add("--q-group-size", type=int, choices=(32, 64, 128), help="weights that share a scale (64)")
    text = "run the source's own model and ours on random tokens and compare; exit code 1 if "
    add("--verify", action="store_true", help=text + "they differ")
    text = "largest difference that passes, relative to the largest logit (2e-5)"
    add("--tolerance", type=float, default=2e-5, metavar="X", help=text)


def read_settings(
    file: Path | None, weights: Path, overrides: list[str]
) -> tuple[dict[str, object], Path | None]:
    """Read a file of settings, or the one beside the weights, and `KEY=VALUE` overrides."""
    if file is None:
        beside = [weights.with_suffix(".yaml"), weights.with_name("convert.yaml")]
        file = next((path for path in beside if path.is_file()), None)
    tree = {} if file is None else read_yaml(file)
    settings = {key: as_number(value) for key, value in tree.items()}
    tokenizer = settings.get("tokenizer")
    if file and isinstance(tokenizer, str) and (file.parent / tokenizer).exists():
        settings["tokenizer"] = str(file.parent / tokenizer)
    return settings | parse_settings(overrides, "norm_eps=1e-6"), file
