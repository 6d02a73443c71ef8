"""`gateloop tune`: a saved model adapted to a text."""

import argparse
import sys
from pathlib import Path

from mlx_gateloop.commands.parser import add_model
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--data", required=True, metavar="PATH", help="texts, as for `gateloop train --data`")
    add("--out", required=True, type=Path, metavar="STATE", help="the new state file")
    text = "learn one initial state a layer and leave the weights as they are"
    add("--state-only", action="store_true", required=True, help=text)
    add("--length", type=int, default=256, metavar="N", help="tokens of a piece of text at most")
    add("--batch-size", type=int, default=8, metavar="N", help="pieces per step")
    add("--steps", type=int, default=300, metavar="N", help="optimizer steps at most")
    add("--answers", action="store_true", help="learn the answers of conversations alone")
    add("--seed", type=int, default=0, help="seed of the order of the pieces")
    command.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import load, tune_state, write_state
    from mlx_gateloop.train.setup import large_cache

    if arguments.out.exists():
        raise InputError(f"{arguments.out}: exists; give another file")
    for name in ("length", "batch_size", "steps"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}: expected at least 1")
    model, tokenizer = load(arguments.model)
    names = ("length", "batch_size", "steps", "answers", "seed")
    options = {name: getattr(arguments, name) for name in names}
    with large_cache():
        tuned = tune_state(
            model,
            tokenizer,
            arguments.data,
            report=lambda line: print(line, file=sys.stderr),
            **options,
        )
    write_state(arguments.out, tuned.state, model, tokenizer, arguments.model)
    print(
        f"saved {arguments.out}: validation loss {tuned.loss_before:.4f} -> {tuned.loss:.4f} "
        f"nats/token (rate {tuned.rate}, scale {tuned.scale})"
    )
