"""Training: configuration, optimizer groups, exact checkpoints, and the loop."""

from mlx_gateloop.io.interrupt import Interrupted
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.dry_run import estimate
from mlx_gateloop.train.loop import TrainResult, train

__all__ = ["Interrupted", "TrainConfig", "TrainResult", "estimate", "train"]
