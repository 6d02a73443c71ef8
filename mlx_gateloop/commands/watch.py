"""`gateloop watch`."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

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
    from mlx_gateloop.io.files import require_writable
    from mlx_gateloop.io.interrupt import interrupt_flag
    from mlx_gateloop.io.models import load_any
    from mlx_gateloop.watch import recording
    from mlx_gateloop.watch.trace import SHOWN

    check_texts(arguments)
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"{arguments.out}: not a directory; give another")
    require_writable(arguments.out / "view.html")
    model, tokenizer = load_any(arguments.model)
    with interrupt_flag() as stop:
        with recording(model, max_bytes=arguments.memory << 20, window=SHOWN) as recorder:
            print_generated(arguments, model, tokenizer, end=stop)
        if recorder.trace.layers:
            _write(recorder, tokenizer, arguments.out)
        else:
            print(f"nothing recorded, no files written: {recorder.reason}", file=sys.stderr)
    if stop.is_set():
        raise KeyboardInterrupt


def _write(recorder: Any, tokenizer: Any, out: Path) -> None:
    from mlx_gateloop.io.files import write_text
    from mlx_gateloop.plots.figures import transitions
    from mlx_gateloop.tokenizer import token_texts
    from mlx_gateloop.watch import share
    from mlx_gateloop.watch.sharing import Kind
    from mlx_gateloop.watch.trace import SHOWN

    trace, unwatched = recorder.trace, recorder.unwatched
    for reason, number in Counter(unwatched.values()).items():
        first = next(path for path in unwatched if unwatched[path] == reason)
        others = f" and {number - 1} more" if number > 1 else ""
        print(f"{first}{others}: {reason}", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    added, ids = tokenizer.added_tokens_decoder.items(), recorder.tokens.tolist()
    special = {id for id, token in added if token.special}
    texts = token_texts(tokenizer, ids)
    kinds: list[Kind] = ["special" if token in special else "answer" for token in ids]
    trace.save(out / "trace.npz", texts)
    transitions(trace, trace.resets().tolist(), out / "transitions.png")
    page = share(trace, texts, kinds, start=max(0, trace.tokens - SHOWN))
    write_text(out / "view.html", page)
    for name in ("trace.npz", "transitions.png", "view.html"):
        print(out / name)
