"""One training run of an experiment: a trial of settings, or a run whose test counts."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlx_gateloop.data.task import Task
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.records import Record, RunRecord, TrialRecord, read_record
from mlx_gateloop.experiments.resets import mean_magnitudes
from mlx_gateloop.io.files import locked, write_text
from mlx_gateloop.io.interrupt import Interrupted
from mlx_gateloop.io.machine import facts, now
from mlx_gateloop.io.models import load_weights
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.train.checkpoint import Progress, read_newest
from mlx_gateloop.train.loop import Diverged
from mlx_gateloop.train.output import has_checkpoint
from mlx_gateloop.train.setup import num_parameters
from mlx_gateloop.train.task import TaskSource, evaluate_task

CONFIG = "config.yaml"
MADE = ("CPU", "versions")  # the facts that a result has
LAST = Path("checkpoints") / "last.safetensors"


@dataclass(frozen=True)
class Run:
    """A training run of a model, a name of `VARIANTS`, on a draw of the data."""

    experiment: Experiment
    model: str
    seed: int
    draw: int
    directory: Path  # see `train.output`; also holds the record of the result
    # values over the experiment's training
    settings: Mapping[Any, object] = field(default_factory=dict)
    kind: ClassVar[type[Record]] = RunRecord
    file: ClassVar[str] = "test.json"

    @property
    def name(self) -> str:
        return self.directory.name

    def read(self) -> dict[str, Any] | None:
        """Read the record; None if there is none, or it is damaged or another's."""
        return read_record(self.record, self.kind)

    def find(self, tree: Mapping[str, Any]) -> dict[str, Any] | None:
        """Find the record in what results.json holds, older ones without their settings."""
        settings = dict(self.settings)
        mine = (r for r in tree["runs"] if (r["model"], r["seed"]) == (self.model, self.seed))
        return next((r for r in mine if r.get("settings", settings) == settings), None)

    @property
    def is_finished(self) -> bool:
        record = self.read()
        return record is not None and record["finished"]

    def check(self, task: Task) -> None:
        """Raise InputError if the run was made with another configuration."""
        if TrainConfig.load(self.directory / CONFIG).to_dict() != self.config(task).to_dict():
            advice = "remove it to train it again, or choose a new directory"
            raise InputError(f"{self.directory}: has another configuration than now; {advice}")

    @property
    def record(self) -> Path:
        return self.directory / self.file

    def task(self) -> Task:
        return self.experiment.make_task(self.draw)

    def config(self, task: Task) -> TrainConfig:
        return self.experiment.config(task, self.model, self.seed, self.settings)

    def go(self) -> bool:
        """Train or resume, and write the result; True if Ctrl-C came in the last step."""
        task, made = self.task(), facts("")  # before the checkout moves on
        try:
            resume = has_checkpoint(self.directory)
            stop = train(self.config(task), task, self.directory, resume=resume).stop_requested
        except Diverged as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            self._write(task, made, finished=True, diverged=True)
            return False
        except Interrupted:
            if (self.directory / LAST).exists():  # else it was before there was a model
                self._write(task, made, finished=False)
            raise
        self._write(task, made, finished=True)
        return stop

    def _write(
        self, task: Task, made: Mapping[str, str], finished: bool, diverged: bool = False
    ) -> None:
        """Write the record, unless another process trains this run now."""
        config = self.config(task)
        record = {"model": self.model, "seed": self.seed, "draw": self.draw}
        record |= {"finished": finished, "diverged": diverged, "settings": dict(self.settings)}
        record["total_steps"] = config.total_steps(TaskSource(config, task).batches.per_epoch)
        record["made"] = {key: made[key] for key in MADE} | {"date": now()}
        with locked(self.directory):
            progress = read_newest(self.directory / LAST)[1]
            record["steps"] = progress.step
            record["seconds"] = progress.seconds + progress.recent_seconds
            write_text(self.record, f"{json.dumps(record | self._result(task, progress))}\n")

    def _result(self, task: Task, progress: Progress) -> dict[str, Any]:
        """Test the best weights of the run (by validation loss)."""
        model, test = load_weights(self.directory), task.test
        score = evaluate_task(model, test, batch_size=32)
        spans, marker = test.inputs.shape[1] + 1, task.marker  # the same for all draws
        return {
            "parameters": num_parameters(model),
            "intermediate_size": model.args.intermediate_size,
            "loss": score.loss_nats,
            "accuracy": score.accuracy,
            "asked_by_span": np.bincount(test.span[test.asked], minlength=spans).tolist(),
            "right_by_span": np.bincount(test.span[score.right], minlength=spans).tolist(),
            "magnitudes": None if marker is None else mean_magnitudes(model, test, marker),
        }


class Trial(Run):
    """A run that tries settings: it never sees the test samples of its draw."""

    kind = TrialRecord
    file = "trial.json"

    def read(self) -> dict[str, Any] | None:
        record = super().read()
        return record if record and record["settings"] == dict(self.settings) else None

    def find(self, tree: Mapping[str, Any]) -> dict[str, Any] | None:
        records = tree["trials"].get(self.model, [])
        return next((r for r in records if r["settings"] == dict(self.settings)), None)

    def task(self) -> Task:
        task = super().task()
        return replace(task, test=task.test[:0])

    def _result(self, task: Task, progress: Progress) -> dict[str, Any]:
        return {"validation_loss": progress.best_loss if np.isfinite(progress.best_loss) else None}
