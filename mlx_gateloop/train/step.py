"""One optimizer step as two compiled functions: a batch's gradients, and the clipped update."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map, tree_map_with_path

from mlx_gateloop.distributed.world import ALONE, World
from mlx_gateloop.ops.pointwise import cross_entropy
from mlx_gateloop.train.chunks import make_chunked_gradients
from mlx_gateloop.train.exchange import Tree, start_sum
from mlx_gateloop.train.optimizer import Optimizer

Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[Iterable[Batch], int, float], tuple[float, float]]


def make_step(
    model: nn.Module,
    optimizer: Optimizer,
    clip_norm: float,
    targets: float,
    dtype: mx.Dtype,
    world: World = ALONE,
    exchange_dtype: mx.Dtype = mx.float32,
    chunk: int | None = None,
) -> Step:
    """Build the step: the gradient of some batches, clipped to a global norm, and the update.

    The gradient is that of the summed loss over the number of targets in a full step, so every
    target of the data weighs the same in it: in which of the batches it is, how short its batch is,
    how many targets that has and which rank computes it do not matter.

    The compiled functions capture the containers of the model's and the optimizer's arrays, so
    both must be initialised (and restored) before. A gradient whose norm is not finite changes
    nothing but the learning rates.

    Args:
        model: the float32 weights.
        optimizer: initialised on the model's weights.
        clip_norm: largest global norm of the gradient.
        targets: mean number of targets in a full step.
        dtype: dtype of the forward and backward pass.
        world: the ranks, of which each gets its part of every batch.
        exchange_dtype: dtype in which they exchange gradients.
        chunk: tokens of a sequence to compute at a time, see `train.chunks`; None is all.

    Returns:
        `step(batches, position, scale) -> (loss, norm)`, with the step's place in the run, from 0,
        and a factor for the loss in its backward pass, see `train.loss_scale`. The loss is the mean
        in nats per target (negative targets are not counted; NaN if there are no others), the norm
        that of the gradient before clipping; if it is not finite, the update was skipped.
    """
    gradients = _make_gradients(model, targets, dtype, chunk)
    update = make_update(model, optimizer, clip_norm)

    def step(batches: Iterable[Batch], position: int, scale: float) -> tuple[float, float]:
        total, asked, factor = mx.array(0.0), 0, mx.array(scale)
        gradient: Tree = {}
        for inputs, answers in batches:
            if len(inputs) == 0:  # fewer sequences than ranks
                continue
            with world.computing():
                mx.eval(total, gradient, mx.random.state)  # one batch at a time
            part, new = gradients(mx.array(inputs), mx.array(answers), factor)
            total = total + part
            asked += np.count_nonzero(answers >= 0)
            gradient = tree_map(mx.add, gradient, new) if gradient else new
        gradient = gradient or tree_map(mx.zeros_like, model.trainable_parameters())
        finish = start_sum(world, gradient, exchange_dtype)
        with world.computing():  # the limit of an exchange is one of waiting, not of computing
            mx.eval(total, gradient, mx.random.state)
        gradient = finish()
        total, count = world.sum(mx.stack([total, mx.array(float(asked))]), "exchange of losses")
        norm = update(gradient, mx.array(position, mx.uint64), factor)
        mx.eval(model.state, optimizer.state, norm)
        return number(total / count), number(norm)

    return step


def _make_gradients(
    model: nn.Module, targets: float, dtype: mx.Dtype, chunk: int | None
) -> Callable[[mx.array, mx.array, mx.array], tuple[mx.array, Tree]]:
    """Build a batch's summed loss and its scaled gradient."""
    state = [model.state, mx.random.state]

    def losses(
        parameters: Tree, inputs: mx.array, answers: mx.array, scale: mx.array, *cache: Any
    ) -> Any:
        model.update(lowered(model, parameters, dtype))
        nats = cross_entropy(model(inputs, *cache), mx.maximum(answers, 0))
        total = mx.where(answers >= 0, nats, 0).sum()
        return total / targets * scale, total

    if chunk is not None:
        return make_chunked_gradients(model, losses, chunk)

    @partial(mx.compile, inputs=state, outputs=state)
    def gradients(inputs: mx.array, answers: mx.array, scale: mx.array) -> tuple[mx.array, Tree]:
        parameters = model.trainable_parameters()
        (_, total), gradient = mx.value_and_grad(losses)(parameters, inputs, answers, scale)
        model.update(parameters)
        return total, gradient

    return gradients


def make_update(
    model: nn.Module, optimizer: Optimizer, clip_norm: float
) -> Callable[[Tree, mx.array, mx.array], mx.array]:
    """Build the update by a scaled gradient; it returns the norm."""
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def update(gradient: Tree, position: mx.array, scale: mx.array) -> mx.array:
        norm: mx.array
        parameters = model.trainable_parameters()
        joined = tree_map(lambda leaf: leaf / scale, optimizer.join(gradient))
        clipped, norm = optim.clip_grad_norm(joined, clip_norm)
        optimizer.schedule(position)
        weights = optimizer.join(parameters)
        before = tree_map(lambda leaf: leaf, [weights, optimizer.state])
        after = [optimizer.updated(clipped, weights), optimizer.state]
        weights, moments = tree_map(partial(mx.where, mx.isfinite(norm)), after, before)
        model.update(optimizer.split(weights, parameters))
        assign(optimizer.state, moments)
        return norm

    return update


def number(scalar: mx.array) -> float:
    """The value of a real array with one element."""
    return cast(float, scalar.item())


def lowered(model: nn.Module, parameters: Tree, dtype: mx.Dtype) -> Tree:
    """Cast the weights to `dtype`, except those that `model.cast_predicate` keeps in float32."""

    def cast_leaf(path: str, leaf: mx.array) -> mx.array:
        return leaf.astype(dtype) if model.cast_predicate(path) else leaf

    return cast(Tree, tree_map_with_path(cast_leaf, parameters))


def assign(target: Any, source: Any) -> None:
    """Write the leaves of one tree into the containers of another with the same structure.

    Compiled functions have captured the containers; replacing them would silently have no effect.
    """
    for key in target if isinstance(target, dict) else range(len(target)):
        if isinstance(target[key], (dict, list)):
            assign(target[key], source[key])
        else:
            target[key] = source[key]


def checkpoint_blocks(model: nn.Module) -> None:
    """Make each block of this model store only its input and recompute the rest in the gradient."""
    for layer in model.layers:
        block = type(layer)

        class Checkpointed(block):  # type: ignore[misc, valid-type]
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return nn.utils.checkpoint(self, super().__call__)(*args, **kwargs)

        layer.__class__ = Checkpointed
