"""`gateloop bench`."""

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    from mlx_gateloop.bench.report import REPORTS

    add = command.add_argument
    text = "ops: the scan and the operator; model: prefill and decode; train: a training step"
    add("what", choices=REPORTS, nargs="?", default="ops", help=text)
    add("--quick", action="store_true", help="small sizes only: seconds instead of minutes")
    add("--out", type=Path, metavar="DIR", help="folder for the reports")
    command.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.bench.report import write_report

    write_report(arguments.what, arguments.quick, arguments.out)
