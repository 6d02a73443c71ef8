"""`gateloop eval`."""

import argparse
from pathlib import Path

from mlx_gateloop.commands.shared import add_model
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
        "--length",
        type=int,
        metavar="N",
        help="tokens of context; none: as in the model's training, or 256",
    )
    add("--batch-size", type=int, metavar="N", default=8, help="sequences at once")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import load
    from mlx_gateloop.data import encode, load_corpus, load_documents, num_bytes
    from mlx_gateloop.evaluate import evaluate
    from mlx_gateloop.train import TrainConfig

    model, tokenizer = load(arguments.model)
    # a run keeps its configuration beside the model
    path = Path(arguments.model) / "config.yaml"
    config = TrainConfig.load(path if path.exists() else None)
    length = config.data.length if arguments.length is None else arguments.length
    for name, value in (("length", length), ("batch_size", arguments.batch_size)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    if arguments.split == "all":
        documents = load_documents(arguments.data)
    else:
        corpus = load_corpus(arguments.data, config.data.validation_fraction)
        documents = getattr(corpus, arguments.split)
        if not documents:
            raise InputError(f"{arguments.data}: has no {arguments.split} part")
    result = evaluate(
        model,
        encode(documents, tokenizer),
        num_bytes(documents),
        length,
        arguments.batch_size,
    )
    print(f"tokens         {result.tokens:,}")
    print(f"loss           {result.loss_nats:.4f} nats/token")
    print(f"perplexity     {result.perplexity:.3f} per token")
    print(f"bits per byte  {result.bits_per_byte:.4f}")
