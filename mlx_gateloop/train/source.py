"""The sources that a run learns from: batches, and a score on held-out data."""

from pathlib import Path
from typing import Protocol

from mlx_gateloop.data import Batches
from mlx_gateloop.data.task import SampleBatches, Task
from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError
from mlx_gateloop.io import models as io
from mlx_gateloop.model.lm import Model
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.evaluate import TaskScore, evaluate_task


class Score(Protocol):
    """A model's score on held-out data."""

    @property
    def loss_nats(self) -> float:
        """The loss that training minimizes; the best model has the lowest."""

    @property
    def others(self) -> dict[str, float]:
        """Other numbers for the log, by name."""


class Source(Protocol):
    """The text or task of a run, as the training loop needs it.

    Args:
        vocab_size: number of input tokens.
        sha256: a fingerprint of all data.
        summary: a description of the training data.
    """

    vocab_size: int
    sha256: str
    summary: str

    @property
    def batches(self) -> Batches | SampleBatches:
        """The training data; a batch is a function of its epoch and index alone."""

    def evaluate(self, model: Model, world: World) -> Score:
        """Score the model on the validation data, of which each rank reads a part."""

    def save(self, model: Model, directory: Path) -> None:
        """Write a model directory."""


class TaskSource:
    """A synthetic task as the source of a run: no tokenizer, and accuracy beside the loss."""

    def __init__(self, config: TrainConfig, task: Task) -> None:
        if config.sequence_parallel > 1:
            raise InputError("sequence_parallel: expected 1, as samples of a task are short")
        self._task, self._batch_size = task, config.data.batch_size
        self.batches = SampleBatches(task.training, self._batch_size, config.seed)
        self.vocab_size, self.sha256 = task.vocab_size, task.sha256
        self.summary = f"{len(task.training):,} samples"

    def evaluate(self, model: Model, world: World) -> TaskScore:
        return evaluate_task(model, self._task.validation, self._batch_size, world)

    def save(self, model: Model, directory: Path) -> None:
        io.save(model, None, directory)
