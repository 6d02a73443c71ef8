"""`gateloop page`."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.parser import add_model
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--out", type=Path, required=True, metavar="FILE", help="the .html file to write")
    add("--title", metavar="TEXT", help="heading of the page")
    command.set_defaults(run=_page)


def _page(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.files import require_writable
    from mlx_gateloop.io.models import load, model_directory
    from mlx_gateloop.watch.page import page

    out, name = arguments.out, model_directory(arguments.model).name
    if out.suffix != ".html":
        raise InputError(f"--out {out}: expected a file whose name ends in .html")
    require_writable(out)
    title = arguments.title or f"{name}: a model that runs in this page"
    page(*load(arguments.model), out, title=title)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
