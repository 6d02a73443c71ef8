"""`gateloop watch`."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from mlx_gateloop.commands.generate import add_generation, check_texts, print_generated
from mlx_gateloop.commands.parser import positive
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_generation(command)
    add = command.add_argument
    add("--out", type=Path, default=Path("watched"), metavar="DIR", help="folder for the files")
    add("--memory", type=positive, default=256, metavar="MB", help="maximum size of the recording")
    command.set_defaults(run=_watch)


def _watch(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.files import require_writable, write_text
    from mlx_gateloop.io.models import load_any
    from mlx_gateloop.plots.figures import transitions
    from mlx_gateloop.tokenizer import token_texts
    from mlx_gateloop.watch import recording, share
    from mlx_gateloop.watch.sharing import Kind
    from mlx_gateloop.watch.trace import SHOWN

    check_texts(arguments)
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"{arguments.out}: not a directory; give another")
    require_writable(arguments.out / "view.html")
    model, tokenizer = load_any(arguments.model)
    with recording(model, max_bytes=arguments.memory << 20, window=SHOWN) as recorder:
        print_generated(arguments, model, tokenizer)
    trace, unwatched = recorder.trace, recorder.unwatched
    if not trace.layers:
        print(f"nothing recorded, no files written: {recorder.reason}", file=sys.stderr)
        return
    for reason, number in Counter(unwatched.values()).items():
        first = next(path for path in unwatched if unwatched[path] == reason)
        others = f" and {number - 1} more" if number > 1 else ""
        print(f"{first}{others}: {reason}", file=sys.stderr)
    arguments.out.mkdir(parents=True, exist_ok=True)
    added, ids = tokenizer.added_tokens_decoder.items(), recorder.tokens.tolist()
    special = {id for id, token in added if token.special}
    texts = token_texts(tokenizer, ids)
    kinds: list[Kind] = ["special" if token in special else "answer" for token in ids]
    trace.save(arguments.out / "trace.npz", texts)
    transitions(trace, trace.resets().tolist(), arguments.out / "transitions.png")
    page = share(trace, texts, kinds, start=max(0, trace.tokens - SHOWN))
    write_text(arguments.out / "view.html", page)
    for name in ("trace.npz", "transitions.png", "view.html"):
        print(arguments.out / name)
