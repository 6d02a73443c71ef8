"""`gateloop train`."""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_gateloop.commands.parser import add_settings, settings
from mlx_gateloop.errors import InputError

if TYPE_CHECKING:  # slow to import
    from mlx_gateloop.train.loop import TrainResult

BEGAN = time.monotonic()  # imports take seconds of --minutes
CONFIGS = Path(__file__).parents[1] / "configs"
FLAGS: dict[str, tuple[str, Any, str]] = {
    "--steps": ("steps", int, "optimizer steps"),
    "--epochs": ("epochs", float, "passes over the text, instead of steps"),
    "--batch-size": ("data.batch_size", int, "sequences per batch"),
    "--length": ("data.length", int, "tokens per sequence"),
    "--learning-rate": ("optimizer.learning_rate", float, "peak learning rate"),
    "--weights": ("weights", str, "model to start from; it decides shape and tokenizer"),
    "--dtype": ("dtype", str, "float32, bfloat16 or float16"),
    "--seed": ("seed", int, "seed of weights, data order and dropout"),
}

OWN_SHAPE = ("model", "tokenizer")  # the sections that a model directory decides


def configurations() -> list[str]:
    """The names of the configurations that come with the package."""
    return sorted(file.stem for file in CONFIGS.glob("*.yaml"))


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    text = f"a packaged configuration ({', '.join(configurations())}) or a YAML file; "
    text += "default: the demo preset for one epoch, or the run's own with --resume"
    add("--config", metavar="NAME", help=text)
    text = "a text file, a folder, a .jsonl file, a folder with WikiText-103, `python-source` "
    text += "(Python's standard library) or `wikitext-103` (from the Hugging Face hub)"
    add("--data", default="python-source", metavar="PATH", help=text)
    add("--out", type=Path, metavar="DIR", help="the new model directory")
    add("--resume", action="store_true", help="continue the run in DIR, bit for bit")
    text = "send the log to wandb or tensorboard, if installed; may be repeated"
    add("--report-to", action="append", default=[], metavar="NAME", help=text)
    text = "write DIR/page.html, which shows losses, half-lives and samples, and refreshes itself"
    add("--page", action="store_true", help=text)
    text = "choose the model, the steps and the schedule for this time, which --resume keeps"
    add("--minutes", type=float, metavar="N", help=text)
    text = "take a few steps, print the cost of the run on this machine, and write nothing"
    add("--dry-run", action="store_true", help=text)
    for flag, (key, type_, text) in FLAGS.items():
        metavar = {int: "N", float: "X", str: "NAME"}[type_]
        add(flag, dest=key, type=type_, metavar=metavar, help=text, default=argparse.SUPPRESS)
    add_settings(command, "any key of the configuration, such as model.dropout=0.1; repeatable")
    command.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.distributed.world import ALONE
    from mlx_gateloop.io.models import local
    from mlx_gateloop.train import TrainConfig, estimate, train
    from mlx_gateloop.train.minutes import choose
    from mlx_gateloop.train.output import Output, has_checkpoint
    from mlx_gateloop.train.ranks import files_of_first
    from mlx_gateloop.train.reporters import reporters

    world = arguments.world or ALONE
    keys = {key for key, _, _ in FLAGS.values()}
    overrides = {key: value for key, value in vars(arguments).items() if key in keys}
    overrides |= settings(arguments.set, "model.dropout=0.1")
    if overrides.get("weights") is not None:
        overrides["weights"] = str(local(str(overrides["weights"])))
    if {"steps", "epochs"} <= overrides.keys():
        raise InputError("--steps and --epochs: give only one of them")
    path = None if arguments.config is None else _path(arguments.config)
    if arguments.out is None and not arguments.dry_run:
        raise InputError("--out: give a directory, or --dry-run")
    if arguments.resume and arguments.dry_run:
        raise InputError("--dry-run: estimates new runs only; leave out --resume")
    reporters(arguments.report_to, arguments.out, {})  # installed; said before the data is read
    pace = None
    if arguments.minutes is not None and (path is not None or not arguments.resume):
        if path is not None or arguments.dry_run or world.size > 1:
            others = "--config, --dry-run and several ranks"
            raise InputError(f"--minutes: chooses alone; leave out {others}")
        Output(arguments.out, False, ExitStack())  # must be new; said before the measuring
        config, pace = choose(arguments.data, arguments.minutes, overrides, BEGAN)
    elif path is None and arguments.resume:
        with files_of_first(world, arguments.out, "config.yaml") as folder:
            if not (folder / "config.yaml").exists():
                advice = "no checkpoint to resume; start without --resume"
                if has_checkpoint(arguments.out):
                    advice = "no config.yaml; give that of the run by --config"
                raise InputError(f"{arguments.out}: {advice}")
            config = TrainConfig.load(folder / "config.yaml", overrides)
    else:
        config = TrainConfig.load(path, overrides)
    if config.weights and (given := [key for key in overrides if key.split(".")[0] in OWN_SHAPE]):
        raise InputError(f"--weights: the directory decides {given[0]}; leave it out")
    if arguments.dry_run:
        print(estimate(config, arguments.data, world))
        print("Nothing was written.")
        return
    shown = arguments.report_to, arguments.page, pace
    report(train(config, arguments.data, arguments.out, arguments.resume, world, *shown))


def report(result: "TrainResult") -> None:
    """Print where a run is and how good it is."""
    print(f"saved {result.out} after {result.steps} steps", end="")
    if result.skipped:
        print(f" ({result.skipped} skipped: gradient not finite)", end="")
    print(f", validation loss {result.best_loss:.4f} nats/token")


def _path(config: str) -> Path:
    """The file of a configuration that is given by name or as a path."""
    if config in configurations() and not Path(config).is_file():
        return CONFIGS / f"{config}.yaml"
    if not Path(config).exists():
        names = ", ".join(configurations())
        raise InputError(f"--config {config}: no such file; give a YAML file or one of {names}")
    return Path(config)
