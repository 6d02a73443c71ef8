"""The sources that a run learns from: batches, and a score on held-out data."""

from pathlib import Path
from typing import Protocol

from mlx_gateloop.data import Batches
from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.distributed.world import World
from mlx_gateloop.model.lm import Model


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
