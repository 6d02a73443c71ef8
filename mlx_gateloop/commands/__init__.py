"""The subcommands of `gateloop`."""

import os
from typing import NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["MPLBACKEND"] = "agg"  # a notebook's own may be missing here, and fail the import


class Command(NamedTuple):
    """A row of the table of commands; `add_arguments` of its module sets `run`, which gets them."""

    summary: str  # its purpose, in lower case
    example: str  # a line to type
    extra: str = ""  # needed whatever the arguments; `cli` checks it before the run
    module: str = ""  # in the package; default: commands.NAME


COMMANDS = {
    "train": Command(
        "train a model on text",
        "gateloop train --data my.txt --minutes 5 --out models/mine",
        "train",
    ),
    "eval": Command(
        "measure perplexity and bits per byte of a text",
        "gateloop eval --model models/mine --data held_out.txt",
        module="commands.evaluate",
    ),
    "generate": Command(
        "stream a continuation or an answer",
        'gateloop generate --model models/mine --prompt "Once upon a time"',
    ),
    "read": Command(
        "read a text of any length into a state that generate --state continues",
        "gateloop read book.txt --model demo --out book.state",
    ),
    "tune": Command(
        "adapt a model to a text: its weights, LoRA adapters, or its initial state",
        "gateloop tune --model demo --data my.txt --state-only --out calm.state",
        "train",
    ),
    "state": Command(
        "show or mix the state files of read and tune",
        "gateloop state mix calm.state brief.state --factors 0.5 0.5 --out both.state",
    ),
    "watch": Command(
        "stream a continuation, and record the decays of any recurrent model of mlx-lm",
        'gateloop watch --model models/mine --prompt "Once upon a time"',
        "train",
    ),
    "page": Command(
        "make one HTML file that runs a model in any browser, and shows its memory",
        "gateloop page --model demo --out demo.html",
    ),
    "app": Command(
        "chat with a model in the browser, and watch what it remembers and forgets",
        "gateloop app --models models --model mine --port 7861",
        "app",
        module="app.__main__",
    ),
    "convert": Command(
        "convert GateLoop weights trained elsewhere into a model directory",
        "gateloop convert weights.pt models/mine --tokenizer bytes",  # torch only for some formats
        module="convert.__main__",
    ),
    "experiment": Command(
        "compare models on a task: memory-horizon, recall, induction, text or ablations",
        "gateloop experiment memory-horizon --preset running_sum --out runs/sum",
        "train",
    ),
    "launch": Command(
        "run train or eval over several processes or machines",
        "gateloop launch -n 2 -- train --data my.txt --out models/mine",
        "train",
    ),
    "bench": Command(
        "time our backends beside plain MLX and mlx-lm", "gateloop bench ops --out results", "train"
    ),
    "doctor": Command(
        "list this machine's backends, what is missing, and how to get it", "gateloop doctor"
    ),
    "mlx-lm": Command(
        "run any mlx_lm command with our model types",
        "gateloop mlx-lm server --model models/mine",
        module="commands.mlx_lm",
    ),
}
