"""The start of a run: its data, its model and optimizer, its step, and MLX's cache of buffers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_reduce

from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.data.task import Task
from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.errors import InputError
from mlx_gateloop.family.layers import LanguageModel
from mlx_gateloop.io.checks import check_memory
from mlx_gateloop.io.machine import memory_bytes
from mlx_gateloop.io.models import TYPES, load_weights
from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.model.lm import Model, require_readable
from mlx_gateloop.model.registered import module
from mlx_gateloop.train import ranks
from mlx_gateloop.train.chunks import zero_states
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.lora import add_lora
from mlx_gateloop.train.optimizer import decided, make_optimizer
from mlx_gateloop.train.step import Batch, lowered, make_step
from mlx_gateloop.train.task import TaskSource
from mlx_gateloop.train.text import TextSource

CACHE_BYTES = 4 << 30
Source = TextSource | TaskSource  # the batches of a run, and a score on held-out data


def make_source(config: TrainConfig, data: str | Task, saved: Path | None = None) -> Source:
    """Make the source of a run's batches; `saved` holds the tokenizer of a run to resume."""
    return TextSource(config, data, saved) if isinstance(data, str) else TaskSource(config, data)


class Trainer:
    """The model of a run with its initial weights, its optimizer, and its step."""

    def __init__(self, config: TrainConfig, source: Source, world: World = ALONE) -> None:
        self.source, self._config = source, config
        self.world = world = ranks.divided(world, config, source.batches.batch_size)
        self.dtype: mx.Dtype = getattr(mx, config.dtype)
        self.steps = config.total_steps(source.batches.per_epoch)
        self.tokens_per_step = tokens_per_step(config)
        self.model = make_model(config, source.vocab_size)
        check_memory("the model", 4 * num_parameters(self.model))
        accumulate = config.optimizer.accumulate
        if isinstance(source.batches, DocumentBatches):  # whose rows may be short
            self.tokens_per_step = round(accumulate * source.batches.tokens)
        optimizer = decided(config.optimizer, source.batches.per_epoch / accumulate)
        self.optimizer = make_optimizer(optimizer, self.steps)
        self.optimizer.init(self.model.trainable_parameters())
        mx.eval(self.model.state, self.optimizer.state)
        ranks.share_sequences(world, self.model)
        if config.carry_state:
            if world.size > 1:
                raise InputError("carry_state: expected one rank; leave it out with several")
            self.optimizer.carried = zero_states(self.model, config.data.batch_size)
        targets = accumulate * source.batches.targets
        self._step = make_step(self.model, self.optimizer, config, targets, world)

    def step(self, position: int, loss_scale: float = 1.0) -> tuple[float, float]:
        """Take the step of that number, from 0; returns its loss and gradient norm."""
        ranks.seed_step(self.world, self._config.seed, position)
        return self._step(self._batches(position), position, loss_scale)

    def _batches(self, step: int) -> Iterator[Batch]:
        """This rank's part of the batches of an optimizer step."""
        batches, world = self.source.batches, self.world
        count = self._config.optimizer.accumulate
        for position in range(step * count, (step + 1) * count):
            epoch, index = divmod(position, batches.per_epoch)
            batch = batches.batch(epoch, index)
            if index == 0 and self.optimizer.carried:
                self.optimizer.carried = zero_states(self.model, len(batch[0]))
            part = world.part(len(batch[0])), world.part_of_sequence(batch[0].shape[1])
            yield tuple(array[part] for array in batch)


def make_model(config: TrainConfig, vocab_size: int) -> Any:
    """Make the model with its initial weights, ours or of `mlx_gateloop.family`."""
    mx.random.seed(config.seed)
    if config.weights is not None:
        model = _load_model(config, Path(config.weights), vocab_size)
    else:
        args = config.model_args(vocab_size)
        model = module(args.model_type).Model(args)
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and not isinstance(layer, StateTransitionLinear):
                layer.weight = config.initial_scale * layer.weight
    if config.checkpoint_blocks:
        model.model.recomputes_blocks = True
    return model.train()


def _load_model(config: TrainConfig, path: Path, vocab_size: int) -> Any:
    """Load the model to start from, in float32."""
    from mlx_lm.utils import dequantize_model

    model: Any = dequantize_model(load_weights(path))
    is_ours = isinstance(model, Model | LanguageModel)
    require_readable(model, vocab_size - 1)
    fits = is_ours and getattr(model.args, "dropout", 0) == 0
    if config.checkpoint_blocks and not fits:
        raise InputError(f"{path}: checkpoint_blocks needs a model of {TYPES} without dropout")
    if config.carry_state and not (fits and getattr(model.args, "mixer", None) != "softmax"):
        needs = f"a model of {TYPES} without dropout and softmax"
        raise InputError(f"{path}: carry_state needs {needs}")
    if not is_ours:
        # mlx-lm's recurrent_gemma does not call it: freeze, unfreeze and trainable_parameters then
        # fail, and MLX has no other public method that makes what they need.
        nn.Module.__init__(model)
    model.set_dtype(mx.float32)
    if config.lora_rank is not None:
        model.update(lowered(model, model.parameters(), getattr(mx, config.dtype)))
        add_lora(model, config.lora_rank)
    return model


def tokens_per_step(config: TrainConfig) -> int:
    return config.optimizer.accumulate * config.data.batch_size * config.data.length


def num_parameters(model: nn.Module) -> int:
    return tree_reduce(lambda n, weight: n + weight.size, model.trainable_parameters(), 0)


@contextmanager
def large_cache() -> Iterator[None]:
    """Let MLX cache at most 4 GB on a CPU; with 32 MB gradients take three times as long."""
    if mx.default_device() != mx.Device(mx.cpu):
        yield
        return
    previous = mx.set_cache_limit(min(CACHE_BYTES, memory_bytes() // 4))
    try:
        yield
    finally:
        mx.set_cache_limit(previous)
