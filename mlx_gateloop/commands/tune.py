"""`gateloop tune`: a saved model adapted to a text."""

import argparse
from typing import Any

from mlx_gateloop.commands.parser import add_model, add_settings, positive, settings
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--data", required=True, metavar="PATH", help="texts, as for `gateloop train --data`")
    text = "the new directory for the model or the adapters; with --state-only the state file"
    add("--out", required=True, metavar="PATH", help=text)
    what = command.add_mutually_exclusive_group()
    text = "learn LoRA adapters of this rank, for mlx_lm's --adapter-path; default: all weights"
    what.add_argument("--lora", type=int, metavar="RANK", help=text)
    text = "learn only each layer's initial state, for generate --state (mlx-lm's: gl.read_state)"
    what.add_argument("--state-only", action="store_true", help=text)
    text = "maximum tokens per piece of text"
    add("--length", type=positive, default=256, metavar="N", help=text)
    add("--batch-size", type=positive, default=8, metavar="N", help="pieces per step")
    add("--steps", type=positive, default=300, metavar="N", help="maximum optimizer steps")
    add("--answers", action="store_true", help="learn only the answers in conversations")
    add("--seed", type=int, default=0, metavar="N", help="seed of the data order")
    add("--resume", action="store_true", help="continue the run in PATH; not for --state-only")
    add_settings(command, "a key of the training configuration; not for --state-only")
    command.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> None:
    if arguments.state_only and (arguments.resume or arguments.set):
        raise InputError("--state-only: does not take --resume or --set; leave them out")
    (_tune_state if arguments.state_only else _tune_weights)(arguments)


def _tune_weights(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.commands.train import OWN_SHAPE, report
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
    chosen = settings(arguments.set, "dtype=bfloat16")
    if given := [key for key in chosen if key.split(".")[0] in (*OWN_SHAPE, "weights")]:
        raise InputError(f"--set {given[0]}: --model decides it; leave it out")
    config = TrainConfig.load(None, values | chosen)
    try:
        report(train(config, arguments.data, arguments.out, arguments.resume))
    except (RuntimeError, ValueError) as error:
        if isinstance(error, InputError) or "vjp" not in str(error):
            raise
        reason = "its layers have no gradient on this device"
        raise InputError(f"{arguments.model}: cannot be tuned: {reason}") from error


def _tune_state(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from mlx_gateloop import tune_state, write_state
    from mlx_gateloop.io.files import require_new
    from mlx_gateloop.io.models import load_any
    from mlx_gateloop.train.output import say
    from mlx_gateloop.train.setup import large_cache

    out = arguments.out
    require_new(Path(out))
    model, tokenizer = load_any(arguments.model)
    names = ("length", "batch_size", "steps", "answers", "seed")
    options = {name: getattr(arguments, name) for name in names}
    with large_cache():
        tuned = tune_state(model, tokenizer, arguments.data, report=say, **options)
    write_state(out, tuned.state, model, tokenizer, arguments.model)
    losses = f"validation loss {tuned.loss_before:.4f} -> {tuned.loss:.4f} nats/token"
    print(f"saved {out}: {losses} (rate {tuned.rate}, scale {tuned.scale})")
