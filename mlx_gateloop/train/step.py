"""One optimizer step: the gradients of its batches, their sum over the ranks, and the update."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map, tree_map_with_path

from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.ops.pointwise import summed_cross_entropy
from mlx_gateloop.train.chunks import States, make_chunked_gradients
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.exchange import start_sum
from mlx_gateloop.train.fused_update import Optimizer, Tree, make_update

Batch = tuple[np.ndarray, ...]  # inputs, answers, and perhaps the documents' first tokens
Step = Callable[[Iterable[Batch], int, float], tuple[float, float]]


def make_step(
    model: nn.Module,
    optimizer: Optimizer,
    config: TrainConfig,
    targets: float,
    world: World = ALONE,
) -> Step:
    """Build `step(batches, position, scale) -> (loss, norm)`, an optimizer step of a run.

    The gradient is that of the summed loss over the mean number of `targets` in a full step,
    clipped: every target weighs the same, whichever batch or rank computes it. If its norm is
    not finite, only the learning rates change. The compiled functions capture the arrays of model
    and optimizer, so both must be initialised before. `optimizer.carried` is updated. The
    loss is the mean in nats per target, negative ones not counted; `scale` multiplies it in its
    backward pass.
    """
    gradients = _make_gradients(model, config, targets)
    update = make_update(model, optimizer, config.optimizer.clip_norm)
    exchange_dtype = getattr(mx, config.optimizer.exchange_dtype)

    def step(batches: Iterable[Batch], position: int, scale: float) -> tuple[float, float]:
        total, asked, factor = mx.array(0.0), 0, mx.array(scale)
        gradient: Tree = {}
        for inputs, answers, *starts in batches:
            if len(inputs) == 0:  # fewer sequences than ranks
                continue
            with world.computing():
                mx.eval(total, gradient, mx.random.state)  # one batch at a time
            arrays = [mx.array(inputs), mx.array(answers), factor, *map(mx.array, starts)]
            part, new, after = gradients(optimizer.carried, *arrays)
            if optimizer.carried and np.isfinite(float(part)):
                # a checkpoint has no bfloat16, which the inputs of convolutions may have
                optimizer.carried = tree_map(lambda x: x.astype(mx.float32), after)
            total = total + part
            asked += np.count_nonzero(answers >= 0)
            gradient = tree_map(mx.add, gradient, new) if gradient else new
        gradient = gradient or tree_map(mx.zeros_like, model.trainable_parameters())
        finish = start_sum(world, gradient, exchange_dtype)
        with world.computing():  # the limit of an exchange is one of waiting, not of computing
            mx.eval(total, gradient, mx.random.state)
        gradient = finish()
        total, count = world.sum(mx.stack([total, mx.array(float(asked))]), "exchange of losses")
        norm = update(gradient, position, factor)
        mx.eval(model.state, optimizer.state, norm)
        return float(total / count), float(norm)

    return step


def _make_gradients(
    model: nn.Module, config: TrainConfig, targets: float
) -> Callable[..., tuple[mx.array, Tree, States]]:
    """Build a batch's summed loss, its scaled gradient, and the states after it if carried."""
    state, dtype = [model.state, mx.random.state], getattr(mx, config.dtype)

    def losses(
        parameters: Tree, inputs: mx.array, answers: mx.array, scale: mx.array, *others: Any
    ) -> Any:
        model.update(lowered(model, parameters, dtype))
        total = summed_cross_entropy(model(inputs, *others), answers)
        return total / targets * scale, total

    if config.sequence_chunk is not None or config.carry_state:
        return make_chunked_gradients(model, losses, config.sequence_chunk or config.data.length)

    @partial(mx.compile, inputs=state, outputs=state)
    def gradients(
        inputs: mx.array, answers: mx.array, scale: mx.array, *starts: mx.array
    ) -> tuple[mx.array, Tree]:
        parameters = model.trainable_parameters()
        extra = (None, *starts) if starts else ()
        (_, total), gradient = mx.value_and_grad(losses)(parameters, inputs, answers, scale, *extra)
        model.update(parameters)
        return total, gradient

    return lambda _, *arrays: (*gradients(*arrays), [])


def lowered(model: nn.Module, parameters: Tree, dtype: mx.Dtype) -> Tree:
    """Cast the weights to `dtype`, except those that `model.cast_predicate` keeps in float32."""
    may_cast = getattr(model, "cast_predicate", lambda _: True)
    return tree_map_with_path(
        lambda p, x: x.astype(dtype) if x.dtype == mx.float32 and may_cast(p) else x, parameters
    )
