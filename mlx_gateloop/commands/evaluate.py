"""`gateloop eval`."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.parser import add_model
from mlx_gateloop.errors import InputError


def add_eval(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--data", required=True, metavar="PATH", help="what `gateloop train --data` takes")
    add(
        "--split",
        choices=("all", "train", "validation", "test"),
        default="all",
        help="all of it, or a part as the model's training cut it",
    )
    add(
        "--context",
        type=int,
        metavar="N",
        help="tokens a window; none: as in the model's training, or 256",
    )
    protocol = command.add_mutually_exclusive_group()
    protocol.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="sliding: windows begin every N tokens and score their last N, so that each token has "
        "seen nearly the context; without it they don't overlap",
    )
    protocol.add_argument(
        "--carry",
        action="store_true",
        help="carried: the state goes on from window to window, so that each token has seen all "
        "of the text; without it every window starts from an empty state",
    )
    add(
        "--whole-windows",
        action="store_true",
        help="leave out a last window that is not full, as the systems do that the paper compares "
        "with on WikiText-103",
    )
    add("--batch-size", type=int, metavar="N", default=8, help="windows at once")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import load
    from mlx_gateloop.data import encode, load_corpus, load_documents, num_bytes
    from mlx_gateloop.evaluate import evaluate, whole_windows
    from mlx_gateloop.train import TrainConfig

    model, tokenizer = load(arguments.model)
    # a run keeps its configuration beside the model
    path = Path(arguments.model) / "config.yaml"
    config = TrainConfig.load(path if path.exists() else None)
    context = config.data.length if arguments.context is None else arguments.context
    stride = arguments.stride
    for name, value in (("context", context), ("batch-size", arguments.batch_size)):
        if value < 1:
            raise InputError(f"--{name}: expected at least 1, got {value}")
    if stride is not None and not 1 <= stride <= context:
        raise InputError(f"--stride: expected 1 to the context's {context} tokens, got {stride}")
    if arguments.carry and model.args.mixer == "softmax":
        raise InputError("--carry: softmax keeps every token; use --stride")
    if arguments.split == "all":
        documents = load_documents(arguments.data)
    else:
        corpus = load_corpus(arguments.data, config.data.validation_fraction)
        documents = getattr(corpus, arguments.split)
        if not documents:
            raise InputError(f"{arguments.data}: has no {arguments.split} part")
    tokens, size = encode(documents, tokenizer), num_bytes(documents)
    if arguments.whole_windows:
        whole = whole_windows(tokens, context)
        tokens, size = whole, round(size * len(whole) / len(tokens))
    batch_size = arguments.batch_size
    context = min(context, max(1, len(tokens) - 1))  # a window is no longer than the text
    stride = None if stride is None else min(stride, context)
    result = evaluate(model, tokens, size, context, batch_size, stride, arguments.carry)
    print(f"tokens         {result.tokens:,}")
    print(f"loss           {result.loss_nats:.4f} nats/token")
    print(f"perplexity     {result.perplexity:.3f} per token")
    print(f"bits per byte  {result.bits_per_byte:.4f}")
    print(f"context        {context:,} tokens")
    print(f"protocol       {_protocol(context, stride, arguments.carry)}")


def _protocol(context: int, stride: int | None, carry: bool) -> str:
    if carry:
        return "carried: the state goes on through the whole text"
    if stride is None:
        return f"windows of {context:,} tokens side by side, each from an empty state"
    return f"sliding: windows of {context:,} tokens from an empty state, each scores {stride:,}"
