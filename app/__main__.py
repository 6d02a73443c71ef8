"""`gateloop app` and `python -m app`: the chat in a browser."""

import argparse
import re
import sys
from pathlib import Path

from mlx_gateloop.__main__ import main as gateloop


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--model", metavar="NAME", help="name of the model to show first")
    text = "a folder of more model directories; may be given several times"
    add("--models", type=Path, action="append", default=[], metavar="DIR", help=text)
    text = "folder of saved conversations (default: ~/.gateloop/conversations; none with --auth)"
    add("--conversations", type=Path, metavar="DIR", help=text)
    add("--allow-hub", action="store_true", help="also load models from the Hugging Face hub")
    text = "the address to listen on"
    add("--host", default="127.0.0.1", type=lambda h: h.strip("[]"), metavar="H", help=text)
    text = "the port to listen on (default: the first free one from 7860)"
    add("--port", type=_port, metavar="P", help=text)
    add("--share", action="store_true", help="create a public link through Gradio's tunnel")
    text = "a host name to accept from a reverse proxy or tunnel; *.NAME allows subdomains"
    add("--allow-host", action="append", default=[], metavar="NAME", help=text)
    text = "the app's path behind a reverse proxy, such as /gateloop"
    add("--root-path", type=_root_path, default="", metavar="PATH", help=text)
    add("--auth", metavar="USER:PASSWORD", help="require a login; @FILE reads it from a file")
    add("--mcp", action="store_true", help="also serve the Model Context Protocol")
    add("--open", action="store_true", help="open the browser")
    command.set_defaults(run=serve)


def serve(arguments: argparse.Namespace) -> None:
    from .server import security

    security.environment(arguments.allow_hub, arguments.share)
    from .server import launch  # Gradio reads the environment when it is imported

    launch.serve(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected 1 to 65535, got {text}")
    return int(text)


def _root_path(text: str) -> str:
    path = text.rstrip("/")
    if path and not re.fullmatch(r"(/[\w.~-]+)+", path):
        raise argparse.ArgumentTypeError(f"expected a path such as /gateloop, got {text}")
    return path


if __name__ == "__main__":
    sys.exit(gateloop(["app", *sys.argv[1:]]))
