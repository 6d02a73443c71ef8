"""A synthetic task as the source of a run, and a model's score on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.data.task import SampleBatches, Samples, Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.errors import InputError
from mlx_gateloop.io import models as io
from mlx_gateloop.model.layers import evaluating
from mlx_gateloop.model.lm import Model
from mlx_gateloop.ops.pointwise import summed_cross_entropy
from mlx_gateloop.train.config import TrainConfig


@dataclass(frozen=True)
class TaskScore:
    """The score of a model on a task."""

    loss_nats: float  # mean negative log-likelihood of the right answers
    accuracy: float  # share of the likeliest answers that are right
    right: np.ndarray  # mask of the right ones, bool `[N, L]`; False where nothing is asked

    @property
    def others(self) -> dict[str, float]:
        return {"accuracy": self.accuracy}


def evaluate_task(
    model: nn.Module, samples: Samples, batch_size: int, world: World = ALONE
) -> TaskScore:
    """Score the model's answers `[B, L, V]` at every asked position of some samples."""
    nats, right = 0.0, np.zeros(samples.inputs.shape, bool)
    for start in range(world.rank * batch_size, len(samples), world.size * batch_size):
        part = slice(start, start + batch_size)
        targets = mx.array(samples.targets[part])
        with evaluating(model):
            logits = model(mx.array(samples.inputs[part]))
        nats += float(summed_cross_entropy(logits, targets))
        right[part] = np.array(logits.argmax(-1) == targets)
    nats = sum(world.gather(nats, "evaluation"))
    right = np.array(world.sum(mx.array(right, mx.uint8), "evaluation"), bool)
    count = samples.asked.sum()
    return TaskScore(float(nats / count), float(right.sum() / count), right)


class TaskSource:
    """A task as the source of a run, see `Source`: accuracy beside the loss, no tokenizer."""

    def __init__(self, config: TrainConfig, task: Task) -> None:
        if config.sequence_parallel > 1:
            raise InputError("sequence_parallel: expected 1, as samples of a task are short")
        if config.carry_state:
            raise InputError("carry_state: expected false, as samples of a task are apart")
        self._task, self._batch_size = task, config.data.batch_size
        self.batches = SampleBatches(task.training, self._batch_size, config.seed)
        self.vocab_size, self.sha256 = task.vocab_size, task.sha256
        self.summary = f"{len(task.training):,} samples"

    def evaluate(self, model: Model, world: World) -> TaskScore:
        return evaluate_task(model, self._task.validation, self._batch_size, world)

    def glimpse(self, _: Model) -> dict[str, Any]:
        return {}

    def save(self, model: Model, directory: Path) -> None:
        io.save(model, None, directory)
