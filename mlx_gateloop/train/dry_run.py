"""The estimated cost of a run on this machine, from a few of its own steps."""

import statistics
import time
from datetime import timedelta

import mlx.core as mx

from mlx_gateloop.data.task import Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.io.tables import name_value_lines
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.setup import Trainer, large_cache, make_source, num_parameters

WARM_UP = 2  # steps; the first ones compile
MIN_STEPS, MAX_STEPS, BUDGET = 3, 50, 10.0  # steps to time, and seconds after which none is started


def estimate(config: TrainConfig, data: str | Task, world: World = ALONE) -> str:
    """Time a few steps of the run that `train` would make; describe its size and its cost."""
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
    parameters, steps, size = num_parameters(trainer.model), trainer.steps, trainer.tokens_per_step
    seconds = statistics.median(times)
    epochs = steps * config.optimizer.accumulate / source.batches.per_epoch
    rows = {
        "parameters": f"{parameters:,} ({parameters / 1e6:.1f}M)",
        "data": source.summary,
        "steps": f"{steps:,} of {size:,} tokens",
        "tokens": f"{steps * size:,} ({epochs:.2f} epochs)",
        "speed": f"{size / seconds:,.0f} tokens/s (median of {len(times)} steps after {WARM_UP})",
        "time": f"{timedelta(seconds=round(steps * seconds))}, validations not counted",
        "peak memory": f"{mx.get_peak_memory() / 2**30:.2f} GB in MLX's arrays",
    }
    return name_value_lines(rows)
