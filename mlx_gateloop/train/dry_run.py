"""The estimated cost of a run on this machine, from a few of its own steps."""

import statistics
import time
from dataclasses import dataclass

import mlx.core as mx

from mlx_gateloop.data.task import Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.io.tables import name_value_lines
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.setup import Trainer, large_cache, make_source, num_parameters

WARM_UP = 2  # steps; the first ones compile
MIN_STEPS, MAX_STEPS, BUDGET = 3, 50, 10.0  # steps to time, and seconds after which none is started


@dataclass(frozen=True)
class Estimate:
    """The size and the cost of a run."""

    parameters: int
    data: str
    steps: int  # in the whole run
    epochs: float  # passes over the data
    tokens_per_step: int  # trained tokens
    timed: int  # number of steps that were timed
    seconds_per_step: float  # their median
    peak_bytes: int  # peak memory of MLX's arrays, without cached buffers

    def __str__(self) -> str:
        speed = self.tokens_per_step / self.seconds_per_step
        rows = {
            "parameters": f"{self.parameters:,} ({self.parameters / 1e6:.1f}M)",
            "data": self.data,
            "steps": f"{self.steps:,} of {self.tokens_per_step:,} tokens",
            "tokens": f"{self.steps * self.tokens_per_step:,} ({self.epochs:.2f} epochs)",
            "speed": f"{speed:,.0f} tokens/s (median of {self.timed} steps after {WARM_UP})",
            "time": f"{duration(self.steps * self.seconds_per_step)}, validations not counted",
            "peak memory": f"{self.peak_bytes / 2**30:.2f} GB in MLX's arrays",
        }
        return name_value_lines(rows)


def estimate(config: TrainConfig, data: str | Task, world: World = ALONE) -> Estimate:
    """Time a few steps of the run that `train` would make; write nothing."""
    with large_cache():
        source = make_source(config, data)
        mx.reset_peak_memory()
        trainer = Trainer(config, source, world)
        for step in range(WARM_UP):
            trainer.step(step)
        times: list[float] = []

        def wants_more() -> bool:
            return len(times) < MIN_STEPS or (len(times) < MAX_STEPS and sum(times) < BUDGET)

        while world.broadcast(wants_more, "timing"):
            began = time.perf_counter()
            trainer.step(WARM_UP + len(times))
            times.append(time.perf_counter() - began)
    return Estimate(
        parameters=num_parameters(trainer.model),
        data=source.summary,
        steps=trainer.steps,
        epochs=trainer.steps * config.optimizer.accumulate / source.batches.per_epoch,
        tokens_per_step=trainer.tokens_per_step,
        timed=len(times),
        seconds_per_step=statistics.median(times),
        peak_bytes=mx.get_peak_memory(),
    )


def duration(seconds: float) -> str:
    """Format seconds in their two largest units: `3 d 4 h`, `1 h 20 min`, `2 min 5 s`."""
    whole = max(1, round(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size:,} {unit} {whole % size // part} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
