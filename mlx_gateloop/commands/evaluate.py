"""`gateloop eval`."""

import argparse
import math
import sys
from dataclasses import replace

from mlx_gateloop.commands.parser import add_model, positive
from mlx_gateloop.errors import InputError


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    text = "a text or a folder, as for `gateloop train --data`"
    add("--data", required=True, metavar="PATH", help=text)
    text = "the whole text, or one part, split as in the model's training"
    add("--split", choices=("all", "train", "validation", "test"), default="all", help=text)
    text = "tokens per window; default: as in the model's training, or 256"
    add("--context", type=positive, metavar="N", help=text)
    protocol = command.add_mutually_exclusive_group()
    text = "sliding protocol: windows start every N tokens and score their last N, so that each "
    text += "prediction has nearly the full context; by default they do not overlap"
    protocol.add_argument("--stride", type=int, metavar="N", help=text)
    text = "carried protocol: each window starts from the last one's state, so that the context "
    text += "is all of the text before it; by default every window starts from an empty state"
    protocol.add_argument("--carry", action="store_true", help=text)
    text = "windows per batch; with --carry one"
    add("--batch-size", type=positive, metavar="N", default=8, help=text)
    command.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import load
    from mlx_gateloop.data import load_corpus, load_documents, num_bytes, pack
    from mlx_gateloop.distributed.world import ALONE
    from mlx_gateloop.io.models import local
    from mlx_gateloop.io.tables import name_value_lines
    from mlx_gateloop.train import TrainConfig
    from mlx_gateloop.train.evaluate import evaluate, require_same

    model, tokenizer = load(arguments.model)
    path = local(arguments.model) / "config.yaml"  # of the run
    if arguments.split in ("train", "validation") and not path.exists():
        share = "data without parts of its own is divided as by default"
        print(f"{arguments.model}: no config.yaml; {share}", file=sys.stderr)
    # A tuned model does not need the one that it started from.
    config = TrainConfig.load(path if path.exists() else None, {"weights": None, "lora_rank": None})
    context = config.data.length if arguments.context is None else arguments.context
    if (stride := arguments.stride) is not None and not 1 <= stride <= context:
        raise InputError(f"--stride: expected 1 to the context's {context} tokens, got {stride}")
    if arguments.carry and getattr(model.args, "mixer", None) == "softmax":
        raise InputError("--carry: a softmax model has no fixed-size state; use --stride")
    if arguments.split == "all":
        documents = load_documents(arguments.data)
    else:
        corpus = load_corpus(arguments.data, config.data.validation_fraction)
        documents = getattr(corpus, arguments.split)
    if not documents:
        raise InputError(f"{arguments.data}: has no {arguments.split} part")
    answers = config.data.loss_on == "answers" and not all(isinstance(d, str) for d in documents)
    stream, size = pack(documents, tokenizer, answers), num_bytes(documents, answers)
    if arguments.carry or not config.data.reset_at_documents:
        stream = replace(stream, starts=None)
    batch_size, tokens = arguments.batch_size, stream.tokens
    context = min(context, max(1, len(tokens) - 1))  # a window is no longer than the text
    stride = None if stride is None else min(stride, context)
    world = arguments.world or ALONE
    require_same(world, model, tokens)
    result = evaluate(model, stream, size, context, batch_size, stride, arguments.carry, world)
    if not math.isfinite(result.loss_nats):
        raise InputError(f"{arguments.model}: its loss is not finite; check its weights")
    lines = {
        "tokens": f"{result.tokens:,}",
        "loss": f"{result.loss_nats:.4f} nats/token",
        "perplexity": f"{result.perplexity:.3f} per token",
        "bits per byte": f"{result.bits_per_byte:.4f}",
        "context": f"{context:,} tokens",
        "protocol": _protocol(context, stride, arguments.carry),
    }
    if stream.starts is not None:
        lines["resets"] = "at each document's first token"
    if stream.asked is not None:
        lines["scored"] = "only answers"
    print(name_value_lines(lines))


def _protocol(context: int, stride: int | None, carry: bool) -> str:
    if carry:
        return "carried: each window starts from the state of the one before"
    if stride is None:
        return f"windows of {context:,} tokens side by side, each from an empty state"
    return f"sliding: windows of {context:,} tokens from an empty state, each scores {stride:,}"
