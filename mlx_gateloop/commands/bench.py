"""`gateloop bench`."""

import argparse
from pathlib import Path

from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    from mlx_gateloop.bench.report import REPORTS

    add = command.add_argument
    text = "ops: the scan and the operator; model: prefill and decode; train: a training step"
    add("what", choices=REPORTS, nargs="?", default="ops", help=text)
    add("--quick", action="store_true", help="small sizes only: seconds instead of minutes")
    add("--out", type=Path, metavar="DIR", help="folder for the reports")
    text = "ops on a GPU: first find the best launch configuration of the kernels, in under two "
    text += "minutes, and store it for this GPU and MLX version"
    add("--tune", action="store_true", help=text)
    command.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.bench.report import write_report
    from mlx_gateloop.bench.tune import tune_this_gpu

    if arguments.tune:
        if arguments.what != "ops":
            raise InputError(f"--tune is for bench ops, not for bench {arguments.what}")
        print(tune_this_gpu())
    write_report(arguments.what, arguments.quick, arguments.out)
