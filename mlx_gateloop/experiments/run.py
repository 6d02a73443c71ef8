"""Tune, train and test every model of an experiment; an interrupted one can be resumed.

OUT/experiment.json                       the experiment
OUT/trials/MODEL-NUMBER/trial.json        a trial's settings and validation loss
OUT/runs/MODEL-SEED/test.json             results of a run's best weights on the test samples
OUT/logs/                                 what they printed, if they ran side by side
OUT/results.{json,md}, OUT/*.png          the comparison, rewritten whenever the command ends

A resumed experiment takes finished runs whose folders were removed from results.json.
"""

import json
import sys
from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from mlx.utils import tree_flatten

from mlx_gateloop.configuration import read_json
from mlx_gateloop.data.task import Task
from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import measure_of
from mlx_gateloop.experiments.process_pool import run_processes
from mlx_gateloop.experiments.records import read_results
from mlx_gateloop.experiments.report import write_report
from mlx_gateloop.experiments.results import LOG, find_curve, write_curve
from mlx_gateloop.experiments.runs import CONFIG, Run
from mlx_gateloop.experiments.tuning import best, trials
from mlx_gateloop.io.files import contents, left_in, locked, sweep, write_text
from mlx_gateloop.io.interrupt import Interrupted
from mlx_gateloop.train.output import has_checkpoint
from mlx_gateloop.train.task import TaskSource


def run_experiment(
    experiment: Experiment, out: Path, resume: bool = False, command: str = "", jobs: int = 1
) -> None:
    """Train all models of an experiment and write the comparison to a directory.

    All models are trained with one seed before the next. A resumed experiment equals the first but
    for seeds and models. Of several `jobs`, each run has a process. Ctrl-C saves everything,
    reports and raises `Interrupted`.
    """
    tasks = [experiment.make_task(draw) for draw in range(experiment.draws)]
    experiment = replace(experiment, data=tuple(task.fingerprint for task in tasks))
    # Report what cannot be trained before training any.
    for run in (*trials(experiment, out), *_runs(experiment, out, tuned=False)):
        config = run.config(tasks[0])
        config.total_steps(TaskSource(config, tasks[0]).batches.per_epoch)
    whole = _compare(out, experiment, resume)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        sweep(out)
        whole.save(out / "experiment.json")
        if resume:
            _restore(out, trials(whole, out), tasks)
            _restore(out, _runs(whole, out, tuned=True), tasks)
        try:
            tried, logs = trials(experiment, out), out / "logs"
            if _train(tried, tasks[0], logs / "trials", jobs):
                raise KeyboardInterrupt
            _train(_runs(experiment, out, tuned=True), tasks[0], logs / "runs", jobs)
        except KeyboardInterrupt:  # also between two runs
            advice = "continue with the same command and --resume"
            raise Interrupted(f"interrupted, saved in {out}; {advice}") from None
        finally:
            write_report(out, whole, tasks, command)


def _runs(experiment: Experiment, out: Path, tuned: bool) -> list[Run]:
    """The runs, with the settings of the best trials if those are finished."""
    chosen = {model: best(experiment, out, model) if tuned else {} for model in experiment.models}
    runs, draws = out / "runs", experiment.draws
    return [
        Run(experiment, model, seed, seed % draws, runs / f"{model}-{seed}", chosen[model])
        for seed in range(experiment.seeds)
        for model in experiment.models
    ]


def _restore(out: Path, runs: Sequence[Run], tasks: Sequence[Task]) -> None:
    """Write the records of finished runs in results.json that have lost their folders."""
    if not (out / "results.json").exists():
        return
    tree = read_results(out)
    for run in runs:
        record = run.find(tree)
        begun = run.read() is not None or has_checkpoint(run.directory)
        if begun or record is None or not record["finished"]:
            continue
        run.directory.mkdir(parents=True, exist_ok=True)  # a kill may have left it without a record
        config = run.config(tasks[0]).to_dict()
        (run.directory / CONFIG).write_text(yaml.safe_dump(config), encoding="utf-8")
        if curve := find_curve(tree, record):
            write_curve(curve, run.directory / LOG, measure_of(run.experiment.name))
        write_text(run.record, f"{json.dumps(record)}\n")


def _train(runs: Sequence[Run], task: Task, logs: Path, jobs: int) -> bool:
    """Train the unfinished runs; return True if Ctrl-C came in the last step of the last."""
    left = [run for run in runs if not run.is_finished]
    for run in runs:
        if run.is_finished:
            run.check(task)
    if left and jobs > 1:
        run_processes({run.name: run.go for run in left}, jobs, logs)
        return False
    stop = False
    for number, run in enumerate(left, 1):
        if stop:
            raise Interrupted
        print(f"{run.directory.parent.name} {number} of {len(left)}: {run.name}", file=sys.stderr)
        stop = run.go()
    return stop


def _compare(out: Path, experiment: Experiment, resume: bool) -> Experiment:
    """Return the experiment with the seeds and models of its directory, which is free or equal."""
    file = out / "experiment.json"
    if not resume:
        check_new(out)
        return experiment
    if not file.exists():
        raise InputError(f"{out}: no experiment to resume; start without --resume")
    saved = Experiment.read(read_json(file), file)
    if saved.name != experiment.name:
        raise InputError(f"{out}: an experiment of {saved.name}; give another folder")
    common = {*saved.models} & {*experiment.models}
    before, now = _compared(saved, common), _compared(experiment, common)
    for key in now | before:
        if before.get(key) != now.get(key):
            was, given = shown(before.get(key)), shown(now.get(key))
            reason = f"the experiment to resume differs in {key}: it had {was}, now it is {given}"
            raise InputError(f"{out}: {reason}; give all options of its command again")
    if saved.data != experiment.data:
        raise InputError(f"{out}: the experiment to resume differs in its data; restore them")
    return replace(
        experiment,
        models=tuple(dict.fromkeys((*saved.models, *experiment.models))),
        seeds=max(saved.seeds, experiment.seeds),
        settings={**saved.settings, **experiment.settings},
    )


def check_new(out: Path) -> None:
    """Check that a directory is new or empty."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file; choose a new directory")
    if out.exists() and {*contents(out)} - {*left_in(out)}:
        raise InputError(f"{out}: already holds something; choose a new directory, or --resume")


def _compared(experiment: Experiment, models: Container[str]) -> dict[str, object]:
    """The values by dotted key that a resumed experiment must share; its text may move."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(experiment)))
    values["task"].pop("file", None)
    settings = values["settings"]
    values["settings"] = {m: settings[m] for m in settings if m in models}
    values["--settings-of"] = bool(settings)
    del values["seeds"], values["models"], values["data"]
    return dict(tree_flatten(values))
