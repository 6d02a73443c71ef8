"""What a run learns from: batches, and a score on what was held out of them."""

from pathlib import Path
from typing import Protocol

from mlx_gateloop import io
from mlx_gateloop.data.task import SampleBatches, Task
from mlx_gateloop.evaluate import TaskScore, evaluate_task
from mlx_gateloop.model.lm import Model
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.step import Batch


class Score(Protocol):
    """How good a model is on held-out data."""

    @property
    def loss_nats(self) -> float:
        """What training minimizes; the lowest is the best model."""

    @property
    def others(self) -> dict[str, float]:
        """Further numbers for the log, by name."""


class Source(Protocol):
    """What the loop needs to know of text, or of a task.

    Args:
        vocab_size: tokens that can come in.
        sha256: a fingerprint of all that the run learns from.
        summary: what there is to learn from, in words.
    """

    vocab_size: int
    sha256: str
    summary: str

    @property
    def per_epoch(self) -> int:
        """Batches an epoch."""

    def batch(self, epoch: int, index: int) -> Batch:
        """Inputs and targets `[batch, length]`; they depend on the two numbers alone."""

    def evaluate(self, model: Model) -> Score:
        """Score the model on what was held out for validation."""

    def save(self, model: Model, directory: Path) -> None:
        """Write a model directory."""


class TaskSource:
    """A synthetic task as the source of a run: no tokenizer, and accuracy beside the loss."""

    def __init__(self, config: TrainConfig, task: Task) -> None:
        self._task, self._batch_size = task, config.data.batch_size
        self._batches = SampleBatches(task.training, self._batch_size, config.seed)
        self.vocab_size, self.sha256 = task.vocab_size, task.sha256
        self.summary = f"{len(task.training):,} samples"

    @property
    def per_epoch(self) -> int:
        return self._batches.per_epoch

    def batch(self, epoch: int, index: int) -> Batch:
        return self._batches.batch(epoch, index)

    def evaluate(self, model: Model) -> TaskScore:
        return evaluate_task(model, self._task.validation, self._batch_size)

    def save(self, model: Model, directory: Path) -> None:
        io.save(model, None, directory)
