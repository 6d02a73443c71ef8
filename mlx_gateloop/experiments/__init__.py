"""The paper's synthetic experiment and its neighbours: one command trains, compares and reports."""

from mlx_gateloop.experiments.presets import PRESETS, Experiment
from mlx_gateloop.experiments.run import run

__all__ = ["PRESETS", "Experiment", "run"]
