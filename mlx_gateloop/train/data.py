"""The data that a run learns from: batches, and a score on held-out data."""

from pathlib import Path
from typing import Any, Protocol

from mlx_gateloop.data import Batches
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.data.task import SampleBatches, Task
from mlx_gateloop.distributed.world import World
from mlx_gateloop.model.lm import Model
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.task import TaskSource
from mlx_gateloop.train.text import TextSource


class Score(Protocol):
    """A model's score on held-out data."""

    @property
    def loss_nats(self) -> float:
        """The loss that training minimizes; the best model has the lowest."""

    @property
    def others(self) -> dict[str, float]:
        """Other numbers for the log, by name."""


class Source(Protocol):
    """The text or task of a run, as the training loop needs it."""

    vocab_size: int  # number of input tokens
    sha256: str  # fingerprint of all data
    summary: str  # description of the training data

    @property
    def batches(self) -> Batches | DocumentBatches | SampleBatches:
        """The training data; a batch is a function of its epoch and index alone."""

    def evaluate(self, model: Model, world: World) -> Score:
        """Score the model on the validation data; each rank reads a part."""

    def glimpse(self, model: Model) -> dict[str, Any]:
        """Return what the log of a validation has besides its score: a text, half-lives."""

    def save(self, model: Model, directory: Path) -> None:
        """Write a model directory."""


def make_source(config: TrainConfig, data: str | Task, saved: Path | None = None) -> Source:
    """Make the source of a run's batches; `saved` holds the tokenizer of a run to resume."""
    return TextSource(config, data, saved) if isinstance(data, str) else TaskSource(config, data)
