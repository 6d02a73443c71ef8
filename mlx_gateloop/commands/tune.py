"""`gateloop tune`: a saved model adapted to a text."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mlx_gateloop.commands.parser import add_model, add_settings, settings
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--data", required=True, metavar="PATH", help="texts, as for `gateloop train --data`")
    text = "the new directory of the model or its adapters; with --state-only the state file"
    add("--out", required=True, type=Path, metavar="PATH", help=text)
    what = command.add_mutually_exclusive_group()
    text = "learn LoRA adapters of this rank, for mlx_lm's --adapter-path; by default all weights"
    what.add_argument("--lora", type=int, metavar="RANK", help=text)
    text = "learn one initial state a layer, for generate --state, and leave the weights alone"
    what.add_argument("--state-only", action="store_true", help=text)
    add("--length", type=int, default=256, metavar="N", help="tokens of a piece of text at most")
    add("--batch-size", type=int, default=8, metavar="N", help="pieces per step")
    add("--steps", type=int, default=300, metavar="N", help="optimizer steps at most")
    add("--answers", action="store_true", help="learn the answers of conversations alone")
    add("--seed", type=int, default=0, metavar="N", help="seed of the order of the pieces")
    text = "continue the run in PATH bit for bit; not with --state-only"
    add("--resume", action="store_true", help=text)
    add_settings(command, "a key of the training's configuration, not with --state-only")
    command.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> None:
    for name in ("length", "batch_size", "steps"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}: expected at least 1")
    if not arguments.state_only:
        return _tune_weights(arguments)
    if arguments.resume or arguments.set:
        raise InputError("--state-only: takes no --resume and no --set; leave them out")
    if arguments.out.exists():
        raise InputError(f"{arguments.out}: exists; give another file")
    _tune_state(arguments)
    return None


def _tune_weights(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.commands.train import report
    from mlx_gateloop.io.models import model_directory
    from mlx_gateloop.train import TrainConfig, train

    values: dict[str, Any] = {
        "weights": str(model_directory(arguments.model)),
        "lora_rank": arguments.lora,
        "data.length": arguments.length,
        "data.batch_size": arguments.batch_size,
        "data.loss_on": "answers" if arguments.answers else "all",
        "steps": arguments.steps,
        "eval_every": max(1, arguments.steps // 10),
        "seed": arguments.seed,
    }
    values |= settings(arguments.set, "optimizer.learning_rate=1e-4")
    config = TrainConfig.load(None, values)
    try:
        result = train(config, arguments.data, arguments.out, arguments.resume)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, InputError) or "vjp" not in str(error):
            raise
        reason = "its layers have no gradient on this device"
        raise InputError(f"{arguments.model}: cannot be tuned: {reason}") from error
    report(result)


def _tune_state(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import tune_state, write_state
    from mlx_gateloop.io.models import load_any
    from mlx_gateloop.train.setup import large_cache

    model, tokenizer = load_any(arguments.model)
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
