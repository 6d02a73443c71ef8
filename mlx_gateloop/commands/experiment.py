"""`gateloop experiment NAME`: models compared on a task."""

import argparse
import shlex
from pathlib import Path

from mlx_gateloop.commands.parser import Formatter, add_settings, positive, settings
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.variants import VARIANTS

# Each one's purpose, the options of an example, and the presets with how long they take.
NAMES = {
    "memory-horizon": (
        "the paper's Memory Horizon task",
        "--preset running_sum --out runs/sum",
        "small (the paper's function, half an hour), running_sum (minutes) or paper (the "
        "paper's, hours)",
    ),
    "recall": (
        "associative recall, asked at every position",
        "--out runs/recall",
        "small (minutes) or author (the sizes of the paper's author, hours)",
    ),
    "induction": ("the induction head task", "--out runs/induction", "small (minutes)"),
    "text": ("the next byte of a text", "--text my.txt --out runs/text", "small (minutes)"),
    "ablations": (
        "choices that the paper leaves open: Memory Horizon with one change at a time",
        "--out runs/ablations",
        "",
    ),
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    names = command.add_subparsers(required=True, metavar="NAME")
    for name, (summary, example, presets) in NAMES.items():
        experiment = names.add_parser(
            name,
            help=summary,
            description=f"Compare models on {summary}.",
            epilog=f"example: gateloop experiment {name} {example}",
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        _add_runs(experiment)
        if name == "ablations":
            experiment.set_defaults(run=_ablations)
        else:
            _add_comparison(experiment, name, presets)


def _add_comparison(command: argparse.ArgumentParser, name: str, presets: str) -> None:
    add = command.add_argument
    if name == "text":
        help_text = "any text of 5 KB or more, or `python-source`: Python's standard library"
        add("--text", required=True, metavar="FILE", help=help_text)
    add("--preset", default="small", metavar="NAME", help=presets)
    add("--draws", type=int, metavar="N", help="number of data draws; seed n uses draw n modulo N")
    text = "first try the same N settings for each model, and use the one with the "
    text += "lowest validation loss; default: 0, the preset's settings"
    add("--tune", type=int, default=0, metavar="N", help=text)
    text = "use the settings that --tune chose for each model in the experiment in DIR (its "
    text += "results.json), for more steps or another size"
    add("--settings-of", type=Path, metavar="DIR", help=text)
    text = f"models to compare, from {', '.join(VARIANTS)}; default: data_controlled,fixed"
    add("--models", metavar="NAME,NAME", help=text)
    text = "choose each model's channel-mixing width so that it has as many parameters as "
    text += "data_controlled, or give all the same width; default: the preset's"
    add("--equal-parameters", action=argparse.BooleanOptionalAction, help=text)
    command.set_defaults(run=_compare, name=name)


def _add_runs(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    text = "folder for results, figures and runs"
    add("--out", type=Path, required=True, metavar="DIR", help=text)
    text = "continue the experiment in DIR, bit for bit if --jobs is 1 both times or above 1 "
    add("--resume", action="store_true", help=text + "both times; more seeds are added")
    add("--seeds", type=int, metavar="N", help="train each model N times; default: the preset's")
    text = "train N models in parallel, each in a process with one BLAS thread and, on "
    text += "Linux, its share of the processors"
    add("--jobs", type=positive, default=1, metavar="N", help=text)
    add_settings(
        command,
        "any other setting of the task, such as task.length=128, or of the training, such as "
        "steps=500, or weights=DIR, an experiment to start from; may be repeated",
    )


def _compare(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.experiments.presets import PRESETS
    from mlx_gateloop.experiments.run import run_experiment
    from mlx_gateloop.experiments.tuning import chosen_in

    named = PRESETS[arguments.name]
    if arguments.preset not in named:
        raise InputError(f"--preset {arguments.preset}: no such preset; choose {', '.join(named)}")
    chosen = settings(arguments.set, "task.length=128")
    if arguments.name == "text":
        if "task.file" in chosen:
            raise InputError("--set task.file: use --text")
        is_named = arguments.text == "python-source"
        chosen["task.file"] = arguments.text if is_named else str(Path(arguments.text).resolve())
    other = arguments.settings_of
    experiment = named[arguments.preset].changed_by(
        chosen,
        seeds=arguments.seeds,
        models=None if arguments.models is None else arguments.models.split(","),
        equal_parameters=arguments.equal_parameters,
        draws=arguments.draws,
        trials=arguments.tune,
        tuned=None if other is None else chosen_in(other, arguments.name),
    )
    run_experiment(experiment, arguments.out, *_how(arguments))
    print((arguments.out / "results.md").read_text(encoding="utf-8"))


def _ablations(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.experiments.ablations import run_ablations

    changes = settings(arguments.set, "task.length=128")
    run_ablations(arguments.out, changes, arguments.seeds, *_how(arguments))
    print((arguments.out / "ablations.md").read_text(encoding="utf-8"))


def _how(arguments: argparse.Namespace) -> tuple[bool, str, int]:
    return arguments.resume, shlex.join(["gateloop", *arguments.argv]), arguments.jobs
