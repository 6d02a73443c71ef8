"""The data that a run learns from: batches, and a score on held-out data."""

from pathlib import Path

from mlx_gateloop.data.task import Task
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.task import TaskSource
from mlx_gateloop.train.text import TextSource

Source = TextSource | TaskSource


def make_source(config: TrainConfig, data: str | Task, saved: Path | None = None) -> Source:
    """Make the source of a run's batches; `saved` holds the tokenizer of a run to resume."""
    return TextSource(config, data, saved) if isinstance(data, str) else TaskSource(config, data)
