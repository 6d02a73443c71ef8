"""The subcommands of `gateloop`. Each imports what it needs when it runs."""

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from mlx_gateloop.commands.evaluate import add_eval
from mlx_gateloop.commands.experiment import add_experiment, add_readings
from mlx_gateloop.commands.figures import add_figures
from mlx_gateloop.commands.generate import add_generate
from mlx_gateloop.commands.launch import add_launch
from mlx_gateloop.commands.tools import add_bench, add_doctor, add_mlx_lm
from mlx_gateloop.commands.train import add_train
from mlx_gateloop.commands.watch import add_watch

# transformers, which no import above brings, would tell every user that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


class Command(NamedTuple):
    """A row of the table of commands.

    Args:
        add: Adds the arguments to the command's parser, and sets `run` to a function of the parsed
            arguments. It returns the exit code, or None for 0, and raises InputError for what the
            user has to correct.
        summary: Its purpose, in lower case.
        example: A line to type.
        extra: The extra that it needs whatever its arguments; `cli` checks it before the run.
    """

    add: Callable[[argparse.ArgumentParser], None]
    summary: str
    example: str
    extra: str = ""


def _add_app(command: argparse.ArgumentParser) -> None:
    import_module("mlx_gateloop.app.__main__").add_arguments(command)


def _add_convert(command: argparse.ArgumentParser) -> None:
    import_module("mlx_gateloop.convert.__main__").add_arguments(command)


COMMANDS = {
    "train": Command(
        add_train,
        "train a model on text",
        "gateloop train --config configs/demo.yaml --data my.txt --out models/mine",
        "train",
    ),
    "eval": Command(
        add_eval,
        "perplexity and bits per byte of a text",
        "gateloop eval --model models/mine --data held_out.txt",
    ),
    "generate": Command(
        add_generate,
        "stream a continuation or an answer",
        'gateloop generate --model models/mine --prompt "Once upon a time"',
    ),
    "watch": Command(
        add_watch,
        "stream a continuation, and record what the recurrent layers of any model of mlx-lm keep",
        'gateloop watch --model models/mine --prompt "Once upon a time"',
        "train",
    ),
    "app": Command(
        _add_app,
        "chat with a model in the browser, and watch what it remembers and forgets",
        "gateloop app --models models --model mine --port 7861",
        "app",
    ),
    "convert": Command(
        _add_convert,
        "turn GateLoop weights trained elsewhere into a model directory, and back",
        "gateloop convert weights.pt models/mine --tokenizer bytes",  # torch only for some formats
    ),
    "figures": Command(
        add_figures,
        "the paper's pictures of any trained model",
        "gateloop figures --model models/mine --text my.txt --out figures",
        "train",
    ),
    "memory-horizon": Command(
        add_experiment,
        "compare models, by default data-controlled and fixed state transitions, on the paper's "
        "Memory Horizon task",
        "gateloop memory-horizon --preset bar --out runs/bar",
        "train",
    ),
    "recall": Command(
        add_experiment,
        "the same comparison on associative recall, asked at every position",
        "gateloop recall --preset small --out runs/recall",
        "train",
    ),
    "induction": Command(
        add_experiment,
        "the same comparison on the induction head task",
        "gateloop induction --preset small --out runs/induction",
        "train",
    ),
    "text": Command(
        add_experiment,
        "the same comparison on the next byte of a text",
        "gateloop text --text my.txt --out runs/text",
        "train",
    ),
    "readings": Command(
        add_readings,
        "train under each reading of what the paper leaves open, one change at a time",
        "gateloop readings --out runs/readings",
        "train",
    ),
    "launch": Command(
        add_launch,
        "run train or eval over several processes or machines",
        "gateloop launch -n 2 -- train --data my.txt --out models/mine",
        "train",
    ),
    "bench": Command(
        add_bench,
        "time our code beside its peers, in one run",
        "gateloop bench ops --out results",
        "train",
    ),
    "doctor": Command(
        add_doctor,
        "what this machine runs on, what is missing, and how to get it",
        "gateloop doctor",
    ),
    "mlx-lm": Command(
        add_mlx_lm,
        "any mlx_lm command, with the model type registered",
        "gateloop mlx-lm convert --hf-path models/mine --mlx-path models/mine-4bit -q",
    ),
}
