"""`gateloop page`."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.parser import add_model


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--out", type=Path, required=True, metavar="FILE", help="the HTML file to write")
    add("--title", metavar="TEXT", help="heading of the page")
    command.set_defaults(run=_page)


def _page(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.models import load
    from mlx_gateloop.watch.page import page

    out = arguments.out
    page(*load(arguments.model), out, title=arguments.title)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
