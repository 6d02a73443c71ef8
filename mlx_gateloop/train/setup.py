"""The start of a run: its data, its model and optimizer, and room for MLX's buffers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_gateloop.data.task import Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.model.lm import Model
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.data import Source
from mlx_gateloop.train.optimizer import Optimizer, make_optimizer
from mlx_gateloop.train.step import Batch, Step, checkpoint_blocks, make_step
from mlx_gateloop.train.task import TaskSource
from mlx_gateloop.train.text import TextSource

CACHE_BYTES = 4 << 30


def make_source(config: TrainConfig, data: str | Task, saved: Path | None) -> Source:
    """Make the source of a run's batches.

    Args:
        config: the run.
        data: see `train`.
        saved: a directory with the tokenizer of the run to resume; None makes a new one.
    """
    return TextSource(config, data, saved) if isinstance(data, str) else TaskSource(config, data)


def make_model(config: TrainConfig, vocab_size: int, steps: int) -> tuple[Model, Optimizer]:
    """Make the model with its initial weights, and its optimizer, both evaluated."""
    mx.random.seed(config.seed)
    model = Model(config.model_args(vocab_size))
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and not isinstance(layer, StateTransitionLinear):
            layer.weight = config.initial_scale * layer.weight
    model.train()
    if config.checkpoint_blocks:
        checkpoint_blocks(model)
    optimizer = make_optimizer(config.optimizer, steps)
    optimizer.init(model.trainable_parameters())
    mx.eval(model.state, optimizer.state)
    return model, optimizer


def make_source_step(
    config: TrainConfig, source: Source, model: Model, optimizer: Optimizer, world: World = ALONE
) -> Step:
    """Make the step function of a run, see `train.step`."""
    settings = config.optimizer
    targets = settings.accumulate * source.batches.targets
    dtype, exchange_dtype = getattr(mx, config.dtype), getattr(mx, settings.exchange_dtype)
    ranks = world, exchange_dtype
    chunk = config.sequence_chunk
    return make_step(model, optimizer, settings.clip_norm, targets, dtype, *ranks, chunk)


def step_batches(
    config: TrainConfig, source: Source, step: int, world: World = ALONE
) -> Iterator[Batch]:
    """This rank's part of the batches of an optimizer step, counted from 0."""
    accumulate = config.optimizer.accumulate
    for position in range(step * accumulate, (step + 1) * accumulate):
        inputs, targets = source.batches.batch(*divmod(position, source.batches.per_epoch))
        part = world.part(len(inputs)), world.part_of_sequence(inputs.shape[1])
        yield inputs[part], targets[part]


def tokens_per_step(config: TrainConfig) -> int:
    return config.optimizer.accumulate * config.data.batch_size * config.data.length


def num_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.trainable_parameters()))
    return sum(weight.size for weight in weights.values())


@contextmanager
def large_cache() -> Iterator[None]:
    """Let MLX cache more freed buffers on a CPU: a quarter of the memory, at most 4 GB.

    With its default of 32 MB a gradient takes three times as long.
    """
    if mx.default_device() != mx.Device(mx.cpu):
        yield
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    previous = mx.set_cache_limit(min(CACHE_BYTES, memory // 4))
    try:
        yield
    finally:
        mx.set_cache_limit(previous)
