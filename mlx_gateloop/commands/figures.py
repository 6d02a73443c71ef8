"""`gateloop figures`."""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mlx_gateloop.commands.parser import add_model, positive
from mlx_gateloop.errors import InputError

Drawing = tuple[str, Callable[[Path], None]]  # a name, and a function that draws to a path


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    text = "the text that the model reads; for a run of an experiment, a test sample is used"
    add("--text", type=Path, metavar="FILE", help=text)
    add("--length", type=positive, metavar="N", default=256, help="tokens of the text to read")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the PNG files")
    command.set_defaults(run=_figures)


def _figures(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.models import local
    from mlx_gateloop.plots import figures

    directory = local(arguments.model)
    drawings: list[Drawing] = []
    if (directory / "test.json").exists():
        if arguments.text is not None:
            raise InputError(f"--text: {directory} is a run of an experiment; leave it out")
        drawings += _of_experiment(directory)
    elif arguments.text is None:
        if not directory.is_dir():
            raise InputError(f"--model {directory}: no such directory")
        raise InputError("--text: give a text file for the model to read")
    else:
        drawings += _of_text(arguments.model, arguments.text, arguments.length)
    log = directory / "log.jsonl"
    if log.exists():
        drawings.append(("training-curves", partial(figures.training_curves, log)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings:
        path = arguments.out / f"{name}.png"
        draw(path)
        print(path)


def _of_text(model_name: str, path: Path, length: int) -> Iterator[Drawing]:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from mlx_gateloop.data.documents import read_text
    from mlx_gateloop.generate import prompt_ids
    from mlx_gateloop.io.models import load_any
    from mlx_gateloop.plots import figures
    from mlx_gateloop.watch import recording

    text = read_text(path)
    model, tokenizer = load_any(model_name)
    if not text:
        raise InputError(f"{path}: contains no text; give a file with text")
    tokens = prompt_ids(model, tokenizer, text[: 64 * length])[:length]
    with recording(model, window=0) as recorder:
        model(mx.array([tokens]), make_prompt_cache(model))
    trace = recorder.trace
    if trace.layers:
        yield "transitions", partial(figures.transitions, trace, trace.resets().tolist())
    else:
        print(f"transitions: nothing recorded: {recorder.reason}", file=sys.stderr)


def _of_experiment(directory: Path) -> Iterator[Drawing]:
    """The run's transitions over a test sample, and the accuracy of all runs of the experiment."""
    import numpy as np

    from mlx_gateloop.experiments.experiment import Experiment
    from mlx_gateloop.experiments.measure import measure_of
    from mlx_gateloop.experiments.pictures import line
    from mlx_gateloop.experiments.results import counts_by_span, read_runs
    from mlx_gateloop.io.models import load_model
    from mlx_gateloop.plots import figures
    from mlx_gateloop.watch import trace_of

    root = directory.resolve().parents[1]
    experiment = Experiment.load(root / "experiment.json")
    task = experiment.make_task()
    tokens = task.test.inputs[0]
    trace = trace_of(load_model(directory), tokens)
    if trace.tokens:
        marks = np.flatnonzero(tokens == task.marker).tolist()
        yield "transitions", partial(figures.transitions, trace, marks)
    if not (runs := read_runs(root)):
        raise InputError(f"{root}: no run has a result; --resume the experiment")
    counts = {line(model): pairs for model, pairs in counts_by_span(runs).items()}
    span = measure_of(experiment.name).span
    yield "accuracy-over-span", partial(figures.accuracy_over_span, counts, span)
