"""`gateloop bench`, `gateloop doctor` and `gateloop mlx-lm`."""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

from mlx_gateloop.errors import InputError


def add_bench(command: argparse.ArgumentParser) -> None:
    from mlx_gateloop.bench import REPORTS

    add = command.add_argument
    add(
        "what",
        choices=REPORTS,
        nargs="?",
        default="ops",
        help="ops: the scan, the operator, matrix products and pointwise functions; model: prefill "
        "and decode; train: a training step",
    )
    add("--quick", action="store_true", help="small sizes only: seconds instead of minutes")
    add("--out", type=Path, metavar="DIR", help="folder for Markdown and plots")
    add(
        "--tune",
        action="store_true",
        help="ops on a GPU: first measure how its kernels best divide their work, in under two "
        "minutes, and keep that for this GPU and this MLX",
    )
    command.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.bench import tune_this_gpu, write_report

    if arguments.tune:
        if arguments.what != "ops":
            raise InputError(f"--tune is for bench ops, not for bench {arguments.what}")
        print(tune_this_gpu())
    write_report(arguments.what, arguments.quick, arguments.out)


def add_doctor(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.commands.doctor import report

    print(report())


def add_mlx_lm(command: argparse.ArgumentParser) -> None:
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="SUBCOMMAND ...")
    command.set_defaults(run=_mlx_lm)


def _mlx_lm(arguments: argparse.Namespace) -> None:
    from mlx_lm import cli  # the model type was registered by importing mlx_gateloop

    words = arguments.arguments or ["--help"]
    for flag, value in pairwise(words):
        is_path = value.startswith(("/", ".", "~"))
        if flag in ("--model", "--hf-path") and is_path and not Path(value).expanduser().exists():
            raise InputError(f"{flag} {value}: no such model directory")
    before = sys.argv
    sys.argv = ["mlx_lm", *words]
    try:
        cli.main()
    except ValueError as error:
        if not str(error).startswith("CLI requires a subcommand"):
            raise
        raise InputError(f"mlx-lm {words[0]}: no such command; see gateloop mlx-lm") from None
    finally:
        sys.argv = before
